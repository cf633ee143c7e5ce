"""Arrivals of all ranks at each collective, and the steps in which the collectives repeat.

No rank leaves a collective before all have arrived. If all ranks recorded how long the kernel took
(`TORCH_NCCL_ENABLE_TIMING=1`), their kernels end together, so the longest one belongs to the rank
that arrived first, whatever their clocks say. Otherwise a rank arrives when its host launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laggard.analysis.formats.flight_recorder.dump_file import (
    CollectiveKey,
    RankDump,
    RecordedCollective,
)

_MAX_PERIOD = 2000


@dataclass(frozen=True)
class JoinedCollective:
    """Collective of several ranks, with the arrival of each.

    Attributes:
        key: process group and number.
        name: name of the operation.
        signature: name and input sizes, equal for repeated collectives.
        arrivals_ns: arrival of each rank.
        end_ns: end for all ranks.
        timed: whether the arrivals come from the durations of the kernels.
    """

    key: CollectiveKey
    name: str
    signature: str
    arrivals_ns: Mapping[int, int]
    end_ns: int
    timed: bool


def join_collectives(dumps: Sequence[RankDump]) -> list[JoinedCollective]:
    """Return the collectives that all members of their process group recorded, ordered by end.

    The members of a group are the ranks that recorded any collective of it.
    """
    members: dict[str, set[int]] = {}
    found: dict[CollectiveKey, dict[int, RecordedCollective]] = {}
    for dump in dumps:
        for key, each in dump.collectives.items():
            members.setdefault(key.group, set()).add(dump.rank)
            found.setdefault(key, {})[dump.rank] = each
    joined = (
        _join(key, by_rank)
        for key, by_rank in found.items()
        if len(by_rank) == len(members[key.group]) > 1
    )
    return sorted(joined, key=lambda each: (each.end_ns, each.key))


def _join(key: CollectiveKey, by_rank: Mapping[int, RecordedCollective]) -> JoinedCollective:
    first = next(iter(by_rank.values()))
    created = {rank: each.created_ns for rank, each in by_rank.items()}
    completed = [each.completed_ns for each in by_rank.values() if each.completed_ns >= 0]
    durations = {rank: each.duration_ns for rank, each in by_rank.items()}
    timed = min(durations.values()) >= 0
    last_ns = max(created.values())
    if timed:
        # The watchdogs notice the end late, so the earliest of them is the closest.
        end_ns = min(completed, default=max(created[rank] + durations[rank] for rank in by_rank))
        arrivals = {rank: end_ns - durations[rank] for rank in by_rank}
    else:
        end_ns, arrivals = max(last_ns, min(completed, default=last_ns)), created
    signature = f"{first.name} {first.signature}"
    return JoinedCollective(key, first.name, signature, arrivals, end_ns, timed)


def split_steps(
    collectives: Sequence[JoinedCollective], world: int
) -> list[list[JoinedCollective]]:
    """Return the collectives by step.

    A step is the shortest sequence of collectives of all ranks that repeats. The collectives of
    other groups belong to the step in which they end. If nothing repeats, every collective of all
    ranks is a step.
    """
    counts = Counter(each.key.group for each in collectives if len(each.arrivals_ns) == world)
    if not counts:
        return []
    # Of several groups of all ranks, the one with the most collectives, by name if equal.
    main = max(sorted(counts), key=counts.__getitem__)
    own = sorted(
        (each for each in collectives if each.key.group == main), key=lambda each: each.key.sequence
    )
    own = [each for each in own if len(each.arrivals_ns) == world]
    period = find_period([each.signature for each in own])
    # The last step is complete; the first may have lost its beginning.
    ends = [each.end_ns for each in own[::-1][::period]][::-1]
    begin_ns = -1
    if len(own) % period and len(ends) > 1:
        begin_ns, *ends = ends
    return _distribute([each for each in collectives if each.end_ns > begin_ns], ends)


def _distribute(
    collectives: Sequence[JoinedCollective], ends: Sequence[int]
) -> list[list[JoinedCollective]]:
    """Return the collectives, which are ordered by end, up to each of some times."""
    steps: list[list[JoinedCollective]] = [[] for _ in ends]
    at = 0
    for each in collectives:
        while at < len(ends) and each.end_ns > ends[at]:
            at += 1
        if at == len(ends):
            break
        steps[at].append(each)
    return [step for step in steps if step]


def find_period(signatures: Sequence[str]) -> int:
    """Return the length of the shortest sequence that repeats at least twice, or 1.

    Examples:
        >>> find_period(["a", "b", "b", "a", "b", "b", "a"])
        3
    """
    # The prefix function: `border[i]` is the length of the longest proper prefix that ends at i.
    border = [0] * len(signatures)
    for at in range(1, len(signatures)):
        length = border[at - 1]
        while length and signatures[at] != signatures[length]:
            length = border[length - 1]
        border[at] = length + (signatures[at] == signatures[length])
    period = len(signatures) - (border[-1] if border else 0)
    return period if 0 < period <= min(len(signatures) // 2, _MAX_PERIOD) else 1
