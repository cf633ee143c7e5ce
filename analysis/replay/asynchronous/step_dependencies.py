"""Dependencies of each step on steps of other ranks, by the strategy's rule or as observed.

- bounded_staleness (Ho et al., NIPS 2013): no rank continues after step k until the gradients of
  step k - `staleness` of all ranks have arrived.
- gossip (Lian et al., NIPS 2017): a step needs the models with which the neighbors began the same
  step.
- hop (Luo et al., ASPLOS 2019): a step needs the models with which the neighbors began a step up
  to `staleness` earlier, except for `backups` of them.
- fast_links: a step needs the models with which its partners in that step began it.

Under other strategies a rank waits for no rank, or for any rank that is present. Its dependency is
then the rank that it was observed to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.errors import RunFolderError
from laggard.core.run_schema import StrategyRecord
from laggard.core.span_schema import Phase

# Tolerance for comparing times that were converted from integer nanoseconds.
_TIE_S = 1e-9
_COMM = Phase.COMM.code


@dataclass(frozen=True)
class StepDependency:
    """Step of another rank that must be reached, and the delay until its message arrives.

    Attributes:
        rank: rank that is waited for.
        step: index of its step.
        ended: if true, the whole step must have ended; otherwise its work before the wait
            suffices.
        lag_s: seconds from that moment until the message is here.
    """

    rank: int
    step: int
    ended: bool
    lag_s: float


@dataclass(frozen=True)
class StepDependencies:
    """Dependencies of one step of a rank; the latest `spare` of them are not waited for."""

    required: tuple[StepDependency, ...]
    spare: int = 0


NO_DEPENDENCIES = StepDependencies(())


@dataclass(frozen=True)
class WaitRule:
    """Rule that names the ranks that a rank waits for, and the step that they must have reached.

    Attributes:
        others: for each rank, the ranks that it needs in every step; None means its partners in
            the step.
        start_suffices: if true, it is enough that they have begun the step, so the one before has
            ended; otherwise their work in the step must be done.
        max_steps_behind: number of steps that they may be behind.
        spare: number of them that the rank does not wait for.
    """

    others: tuple[tuple[int, ...], ...] | None
    start_suffices: bool = True
    max_steps_behind: int = 0
    spare: int = 0


def get_wait_rule(strategy: StrategyRecord, world: int) -> WaitRule | None:
    """Return the wait rule of a strategy, or None without a rule that links steps to steps.

    The result is also None if the record lacks the strategy's parameters.
    """
    parameters = strategy.parameters
    everybody = tuple(tuple(q for q in range(world) if q != rank) for rank in range(world))
    ring = tuple(tuple(sorted({(r - 1) % world, (r + 1) % world} - {r})) for r in range(world))
    match strategy.name, parameters:
        case "bounded_staleness", {"staleness": int(staleness)}:
            return WaitRule(everybody, start_suffices=False, max_steps_behind=staleness)
        case "gossip", {"graph": graph}:
            return WaitRule(ring if graph == "ring" else everybody)
        case "hop", {"graph": graph, "staleness": int(staleness), "backups": int(backups)}:
            return WaitRule(
                ring if graph == "ring" else everybody, max_steps_behind=staleness, spare=backups
            )
        case "fast_links", _:
            return WaitRule(None)
    return None


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
        least = int(rank_timeline.number[step]) - rule.max_steps_behind - 1
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
            # Unfulfilled dependencies used up part of the spare ones; one dependency always
            # remains.
            spare = 0 if rule is None else max(min(rule.spare - unmet, len(required) - 1), 0)
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
    least = (
        int(rank_timeline.number[step]) - rule.max_steps_behind - (1 if rule.start_suffices else 0)
    )
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


def sort_events(
    dependencies: Sequence[Sequence[StepDependencies]],
) -> tuple[tuple[int, int, bool], ...]:
    """Return all events at which ranks become ready or resume, each after those that it needs.

    Args:
        dependencies: dependencies of every step of every rank, [W][N].

    Returns:
        Rank, step, and True if the rank resumes, [2 x all steps]. The order is valid for every
        replay with the same dependencies.

    Raises:
        RunFolderError: steps depend on each other in a cycle, so the spans cannot be right.
    """
    order: list[tuple[int, int, bool]] = []
    ready, finished = [0] * len(dependencies), [0] * len(dependencies)

    def come(dependency: StepDependency) -> bool:
        return dependency.step < (finished if dependency.ended else ready)[dependency.rank]

    # Each pass advances every rank as far as possible; a pass without progress means a cycle.
    while sum(finished) < sum(map(len, dependencies)):
        before = len(order)
        for rank, of_rank in enumerate(dependencies):
            while finished[rank] < len(of_rank):
                step = finished[rank]
                if ready[rank] == step:
                    order.append((rank, step, False))
                    ready[rank] += 1
                if not all(come(dependency) for dependency in of_rank[step].required):
                    break
                order.append((rank, step, True))
                finished[rank] += 1
        if len(order) == before:
            raise RunFolderError(
                "steps of several ranks wait for each other in a cycle, so the recorded spans"
                " cannot be right — check the clocks of the hosts"
            )
    return tuple(order)
