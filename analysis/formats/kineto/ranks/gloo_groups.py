"""Process groups of gloo's collectives, which gloo does not record.

Each process group of gloo has threads of its own, so collectives of one thread have one group. If
all ranks launch the same collectives in the same order, the n-th of a rank belongs together with
the n-th of others. Its group is the one whose ranks leave it together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from laggard.analysis.formats.kineto.process_groups import (
    UNKNOWN_GROUP,
    GroupConfig,
    ProcessGroup,
)
from laggard.analysis.formats.kineto.ranks.group_identities import RankSteps
from laggard.analysis.formats.kineto.step_trace import NO_THREAD, RankCollective, StepTrace

_RATIO, _MARGIN_NS = 3.0, 5_000
"""Large groups fit if their ranks' ends differ at most so many times as much as the best ones'."""
_MAX_EARLY_NS = 1_000_000
"""Longest time that a rank may arrive after another has left, because clocks differ."""
_MAX_FAMILIES = 64

_Meeting = Mapping[int, RankCollective]
"""Collectives of all ranks that have the same place in the order of a step."""
Family = tuple[tuple[int, ...], ...]
"""Groups to which all ranks belong, each to one."""


@dataclass(frozen=True)
class _ThreadClass:
    """Threads that ran collectives of the same places, and these collectives."""

    threads: set[tuple[int, int]]
    meetings: list[_Meeting]


def infer_gloo_groups(steps: RankSteps, configs: Mapping[int, GroupConfig]) -> RankSteps | None:
    """Return the same steps with the groups of gloo's collectives.

    It is None if no group is unknown, or if the collectives do not fit any groups.

    Args:
        steps: steps of every rank.
        configs: process groups of every rank.
    """
    meetings = _match_by_order(steps)
    if not meetings:
        return None
    candidates = {
        ranks for config in configs.values() for ranks in config.ranks.values() if len(ranks) > 1
    }
    families = tuple(islice(_list_families(sorted(steps), candidates), _MAX_FAMILIES))
    groups: dict[tuple[int, int], ProcessGroup] = {}
    for each in _join_threads(meetings):
        family = _choose_family(each.meetings, families)
        if family is None:
            return None
        own = {rank: ProcessGroup("", ranks, len(ranks)) for ranks in family for rank in ranks}
        groups |= {(rank, thread): own[rank] for rank, thread in each.threads}
    return {
        rank: {number: _with_groups(rank, step, groups) for number, step in own_steps.items()}
        for rank, own_steps in steps.items()
    }


def _is_unknown(collective: RankCollective) -> bool:
    return collective.group is UNKNOWN_GROUP and not collective.is_point_to_point


def _with_groups(
    rank: int, step: StepTrace, groups: Mapping[tuple[int, int], ProcessGroup]
) -> StepTrace:
    collectives = (
        replace(each, group=groups[rank, each.thread]) if _is_unknown(each) else each
        for each in step.collectives
    )
    return replace(step, collectives=tuple(collectives))


def _match_by_order(steps: RankSteps) -> list[_Meeting]:
    """Return the collectives without a known group, or nothing if ranks have different ones."""
    meetings: list[_Meeting] = []
    for number in next(iter(steps.values())):
        by_rank = {
            rank: [each for each in own[number].collectives if _is_unknown(each)]
            for rank, own in steps.items()
        }
        kinds = {
            tuple((each.kind, each.bytes) for each in collectives)
            for collectives in by_rank.values()
        }
        threads = {each.thread for own in by_rank.values() for each in own}
        if len(kinds) > 1 or NO_THREAD in threads:
            return []
        meetings += [
            dict(zip(by_rank, met, strict=True)) for met in zip(*by_rank.values(), strict=True)
        ]
    return meetings


def _join_threads(meetings: Sequence[_Meeting]) -> list[_ThreadClass]:
    """Return meetings by their threads: two that share a thread are of the same group."""
    classes: list[_ThreadClass] = []
    for meeting in meetings:
        threads = {(rank, each.thread) for rank, each in meeting.items()}
        same = [each for each in classes if each.threads & threads]
        joined = _ThreadClass(
            threads.union(*(each.threads for each in same)),
            [*(met for each in same for met in each.meetings), meeting],
        )
        classes = [joined, *(each for each in classes if each not in same)]
    return classes


def _list_families(ranks: Sequence[int], candidates: Iterable[tuple[int, ...]]) -> Iterator[Family]:
    """Yield all ways to divide the ranks into candidate groups of equal size."""
    if not ranks:
        yield ()
        return
    groups = [group for group in candidates if ranks[0] in group and set(group) <= set(ranks)]
    for group in sorted(groups, key=lambda each: (-len(each), each)):
        rest = [rank for rank in ranks if rank not in group]
        same_size = [each for each in candidates if len(each) == len(group)]
        for others in _list_families(rest, same_size):
            yield (group, *others)


def _choose_family(meetings: Sequence[_Meeting], families: Sequence[Family]) -> Family | None:
    """Return the largest groups whose ranks leave all collectives together; None without any."""
    together = [each for each in meetings if next(iter(each.values())).ends_together]
    possible = [family for family in families if _is_possible(together, family)]
    if not possible or not together:
        return None
    spread = {family: _measure_spread_ns(together, family) for family in possible}
    most = _RATIO * min(spread.values()) + _MARGIN_NS
    fitting = [family for family in possible if spread[family] <= most]
    return min(fitting, key=lambda family: (len(family), spread[family]))


def _is_possible(meetings: Sequence[_Meeting], family: Family) -> bool:
    """Return whether no rank arrives after another rank of its group has left."""
    return all(
        max(meeting[rank].start_ns for rank in group)
        <= min(meeting[rank].end_ns for rank in group) + _MAX_EARLY_NS
        for meeting in meetings
        for group in family
    )


def _measure_spread_ns(meetings: Sequence[_Meeting], family: Family) -> float:
    """Return the usual difference between the first and the last end in a group."""
    ends = [[meeting[rank].end_ns for rank in group] for meeting in meetings for group in family]
    return float(np.median([max(each) - min(each) for each in ends]))
