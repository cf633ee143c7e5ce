"""What each step had to wait for: steps of other ranks, by the strategy's own rule; where it has
none, as it was seen.

bounded_staleness (Ho et al., NIPS 2013): nobody goes on from step k before everybody's gradient of
step k - `staleness` has come. gossip (Lian et al., NIPS 2017): the models that the neighbours began
the same step with. hop (Luo et al., ASPLOS 2019): those that they began a step up to `staleness`
earlier with, but for `backups` of them. fast_links: the models that the ranks began the step with
that it was paired with. Under the others a rank waits for nobody, or for whoever happens to be
there; there the one that it was seen to wait for is what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.errors import RunFolderError
from laggard.core.run_schema import StrategyRecord
from laggard.core.span_schema import Phase

_TIE_S = 1e-9
_COMM = Phase.COMM.code


@dataclass(frozen=True)
class StepDependency:
    """A step of another rank, and how long after its work was done (or all of it had ended) word of
    it was here.
    """

    rank: int
    step: int
    ended: bool
    lag_s: float


@dataclass(frozen=True)
class StepDependencies:
    """What one step of a rank needs, all but the `spare` that come last."""

    required: tuple[StepDependency, ...]
    spare: int = 0


NO_DEPENDENCIES = StepDependencies(())


@dataclass(frozen=True)
class WaitRule:
    """Whom a rank waits for, and how far these must have come.

    Attributes:
        others: by rank, whom it needs in every step; None: its partners in that step.
        start_suffices: whether it is enough that they have begun such a step, so that the one
            before has ended; else its work must be done.
        max_steps_behind: steps that they may be behind.
        spare: of the others, how many it does not wait for.
    """

    others: tuple[tuple[int, ...], ...] | None
    start_suffices: bool = True
    max_steps_behind: int = 0
    spare: int = 0


def get_wait_rule(strategy: StrategyRecord, world: int) -> WaitRule | None:
    """The waiting rule of a strategy; None where it has none that binds steps to steps, or the
    record does not say its parameters.
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
    """Paces in which ranks also stand for messages that were sent before they were ready, and still
    under way.

    A transfer behind no wait was that, and not only the taking of a message that had lain there, if
    by the rule the message had been under way for less time than it still took; of one that was
    longer under way it cannot be told.
    """
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
    """What every step of every rank needs, [W][N].

    A need that was not yet met when the rank went on is none: it is one of those that it does not
    wait for. How long a message that nobody had to wait for took is not seen; it is taken to be
    what it usually was between the two, and no longer than it can have been.

    Args:
        rank_timelines: of every rank.
        rule: of the strategy, if it has one.
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
            spare = 0 if rule is None else max(min(rule.spare - unmet, len(required) - 1), 0)
            of_rank.append(
                StepDependencies(tuple(required.values()), spare) if required else NO_DEPENDENCIES
            )
        found.append(tuple(of_rank))
    return tuple(found)


def _find_required(
    rule: WaitRule | None, rank: int, step: int, rank_timelines: Sequence[RankTimeline]
) -> list[StepDependency]:
    """What the rule asks for, with the time since; before the rank went on it had not come where
    that is negative.
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
    """What ended the wait: what the rule asks of the awaited rank, or else the last thing that it
    had done by then.
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
    """The last thing that the awaited rank had done when the wait was over."""
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
    """Median lag by (from, to)."""
    lags: dict[tuple[int, int], list[float]] = {}
    for rank, dependencies in enumerate(binding):
        for dependency in dependencies:
            if dependency is not None:
                lags.setdefault((dependency.rank, rank), []).append(dependency.lag_s)
    return {pair: float(np.median(values)) for pair, values in lags.items()}


def sort_events(
    dependencies: Sequence[Sequence[StepDependencies]],
) -> tuple[tuple[int, int, bool], ...]:
    """All moments at which a rank was ready and at which it went on, each after those that it
    needs.

    Args:
        dependencies: of every step of every rank, [W][N].

    Returns:
        Rank, step, and whether it goes on, [2 x steps of all]; good for every replay in which the
        same steps are needed.

    Raises:
        RunFolderError: steps need each other in a circle, so the spans cannot be right.
    """
    order: list[tuple[int, int, bool]] = []
    ready, finished = [0] * len(dependencies), [0] * len(dependencies)

    def come(dependency: StepDependency) -> bool:
        return dependency.step < (finished if dependency.ended else ready)[dependency.rank]

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
                "steps of several ranks wait for each other, so their spans cannot be right"
            )
    return tuple(order)
