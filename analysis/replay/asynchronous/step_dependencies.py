"""Dependencies of each step on steps of other ranks, by the strategy's rule or as observed.

`laggard.core.rules.wait_rule` has the rules. Under strategies without one, a rank waits for no
rank, or for any rank that is present. Its dependency is then the rank that it was observed to wait
for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.rules.wait_rule import WaitRule, count_spare
from laggard.core.simulation.group_steps import GroupSteps
from laggard.core.simulation.step_graph import (
    NO_DEPENDENCIES,
    StepDependencies,
    StepDependency,
    StepGraph,
)
from laggard.core.span_schema import Phase

# Tolerance for comparing times that were converted from integer nanoseconds.
_TIE_S = 1e-9
_COMM = Phase.COMM.code


def attribute_inflight_waits(
    rank_timelines: tuple[RankTimeline, ...], rule: WaitRule | None
) -> tuple[RankTimeline, ...]:
    """Return timelines in which a transfer of a message that was still in flight counts as a wait.

    A transfer without a wait is either such a message or the reading of one that had already
    arrived. It counts as a wait if, by the rule, the message had been in flight for less time than
    its transfer still took. If the message had been in flight for longer, the two cases cannot be
    distinguished.
    """
    # With `start_suffices` false, ranks wait for a server's answer and not for a peer's message.
    if rule is None or not rule.start_suffices:
        return rank_timelines
    return tuple(
        _attribute_rank_waits(rank_timeline, rule, rank_timelines)
        for rank_timeline in rank_timelines
    )


def _attribute_rank_waits(
    rank_timeline: RankTimeline, rule: WaitRule, rank_timelines: Sequence[RankTimeline]
) -> RankTimeline:
    resume_s, after = rank_timeline.resume_s.copy(), rank_timeline.after.copy()
    awaited, message_s = rank_timeline.awaited.copy(), rank_timeline.message_s.copy()
    for step in np.flatnonzero(
        (rank_timeline.awaited < 0) & (rank_timeline.after[:, _COMM] > 0)
    ).tolist():
        least = rule.oldest_step(int(rank_timeline.number[step]))
        left_s = float(rank_timeline.after[step, _COMM])
        sent = []
        for other in rank_timeline.partners[step]:
            at = int(np.searchsorted(rank_timelines[other].number, least, side="left"))
            if at < len(rank_timelines[other]):
                sent.append(
                    (float(rank_timeline.ready_s[step] - rank_timelines[other].end_s[at]), other)
                )
        since_s, latest = min((each for each in sent if each[0] >= 0), default=(np.inf, -1))
        if since_s < left_s:
            resume_s[step] += left_s
            after[step, _COMM] = 0.0
            awaited[step], message_s[step] = latest, left_s
    return replace(
        rank_timeline, resume_s=resume_s, after=after, awaited=awaited, message_s=message_s
    )


def build_step_graph(rank_timelines: Sequence[RankTimeline], rule: WaitRule | None) -> StepGraph:
    """Return the steps of all ranks and their dependencies (see `find_dependencies`)."""
    return StepGraph(_list_start_times(rank_timelines), find_dependencies(rank_timelines, rule))


def build_group_steps(rank_timelines: Sequence[RankTimeline], size: int, rounds: int) -> GroupSteps:
    """Return the steps of ranks that went on in groups, with the usual lag of a group.

    The last rank of a group resumes when it is notified, which is recorded after its wait. While a
    group is agreed on, a rank is idle without a known rank to wait for. This time counts as work
    after the wait.
    """
    lags = [
        dependency.lag_s
        for rank_timeline, of_rank in zip(
            rank_timelines, find_dependencies(rank_timelines, None), strict=True
        )
        for step, dependencies in enumerate(of_rank)
        for dependency in dependencies.required
        if rank_timeline.wait_s[step] > 0
    ]
    lag_s = float(np.median(lags)) if lags else 0.0
    return GroupSteps(_list_start_times(rank_timelines), size, rounds, lag_s)


def _list_start_times(rank_timelines: Sequence[RankTimeline]) -> tuple[float, ...]:
    return tuple(float(each.start_s[0]) for each in rank_timelines)


def find_dependencies(
    rank_timelines: Sequence[RankTimeline], rule: WaitRule | None
) -> tuple[tuple[StepDependencies, ...], ...]:
    """Return the dependencies of every step of every rank, [W][N].

    A dependency that was not fulfilled when the rank resumed is dropped: it is one of those that
    the rank does not wait for. The delay of a message that no rank waited for is not observed. It
    is assumed to be the usual delay between the two ranks, but no longer than it can have been.

    Args:
        rank_timelines: timeline of every rank.
        rule: wait rule of the strategy, if it has one.
    """
    required_steps = [
        [_find_required(rule, rank, step, rank_timelines) for step in range(len(rank_timeline))]
        for rank, rank_timeline in enumerate(rank_timelines)
    ]
    binding = [
        [
            _find_binding(rank_timeline, step, required_steps[r][step], rank_timelines)
            for step in range(len(rank_timeline))
        ]
        for r, rank_timeline in enumerate(rank_timelines)
    ]
    usual = _compute_usual_lags(binding)
    found = []
    for rank, rank_timeline in enumerate(rank_timelines):
        of_rank = []
        for step in range(len(rank_timeline)):
            met = [each for each in required_steps[rank][step] if each.lag_s >= 0]
            required = {
                each.rank: replace(each, lag_s=min(usual.get((each.rank, rank), 0.0), each.lag_s))
                for each in met
            }
            last = binding[rank][step]
            if last is not None:
                required[last.rank] = last
            unmet = len(required_steps[rank][step]) - len(met)
            # Unfulfilled dependencies used up part of the spare ones.
            spare = 0 if rule is None else count_spare(rule.spare - unmet, len(required))
            of_rank.append(
                StepDependencies(tuple(required.values()), spare) if required else NO_DEPENDENCIES
            )
        found.append(tuple(of_rank))
    return tuple(found)


def _find_required(
    rule: WaitRule | None, rank: int, step: int, rank_timelines: Sequence[RankTimeline]
) -> list[StepDependency]:
    """Return the dependencies by the rule; their lag is the time since they were fulfilled.

    The lag is negative if a dependency was not fulfilled when the rank resumed.
    """
    if rule is None:
        return []
    rank_timeline = rank_timelines[rank]
    others = tuple(rank_timeline.partners[step]) if rule.others is None else rule.others[rank]
    least = rule.oldest_step(int(rank_timeline.number[step]))
    if least < 0:
        return []
    required_steps = []
    for other in others:
        at = int(np.searchsorted(rank_timelines[other].number, least, side="left"))
        moments = (
            rank_timelines[other].end_s if rule.start_suffices else rank_timelines[other].ready_s
        )
        since_s = float(rank_timeline.resume_s[step] - moments[at]) if at < len(moments) else -1.0
        required_steps.append(StepDependency(other, at, rule.start_suffices, since_s))
    return required_steps


def _find_binding(
    rank_timeline: RankTimeline,
    step: int,
    required_steps: Sequence[StepDependency],
    rank_timelines: Sequence[RankTimeline],
) -> StepDependency | None:
    """Return the dependency that ended the wait.

    It is the rule's dependency on the awaited rank, or else the last event of that rank before the
    end of the wait.
    """
    other = int(rank_timeline.awaited[step])
    if other < 0 or rank_timeline.wait_s[step] <= 0:
        return None
    ruled = next(
        (
            dependency
            for dependency in required_steps
            if dependency.rank == other and dependency.lag_s >= 0
        ),
        None,
    )
    return ruled or _find_observed(rank_timeline, step, rank_timelines)


def _find_observed(
    rank_timeline: RankTimeline, step: int, rank_timelines: Sequence[RankTimeline]
) -> StepDependency | None:
    """Return the last event of the awaited rank before the end of the wait."""
    other = int(rank_timeline.awaited[step])
    done = []
    for ended, moments in (
        (False, rank_timelines[other].ready_s),
        (True, rank_timelines[other].end_s),
    ):
        last = (
            int(np.searchsorted(moments, rank_timeline.resume_s[step] + _TIE_S, side="right")) - 1
        )
        if last >= 0:
            done.append(
                StepDependency(
                    other,
                    last,
                    ended,
                    max(float(rank_timeline.resume_s[step] - moments[last]), 0.0),
                )
            )
    return min(done, key=lambda dependency: dependency.lag_s, default=None)


def _compute_usual_lags(
    binding: Sequence[Sequence[StepDependency | None]],
) -> dict[tuple[int, int], float]:
    """Return the median lag for each pair (from, to)."""
    lags: dict[tuple[int, int], list[float]] = {}
    for rank, dependencies in enumerate(binding):
        for dependency in dependencies:
            if dependency is not None:
                lags.setdefault((dependency.rank, rank), []).append(dependency.lag_s)
    return {pair: float(np.median(values)) for pair, values in lags.items()}
