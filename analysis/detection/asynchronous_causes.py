"""Causes of slowness in asynchronous ranks.

Each rank's steps are compared with its own usual duration and with the fastest class's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.families import (
    COMPUTE,
    LOCAL_FAMILIES,
    NETWORK,
    FamilySpec,
)
from laggard.analysis.detection.intervals import MIN_STEPS, estimate_shared_drift
from laggard.analysis.detection.reference import References, compute_log_ratio
from laggard.analysis.detection.series_causes import (
    MIN_MAKESPAN_SHARE,
    LogRatioSeries,
    find_series_causes,
    is_starving,
    measure_series_levels,
)
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.timelines.rank_timeline import PHASES, RankTimeline
from laggard.core.span_schema import Phase

_COMM = Phase.COMM.code


@dataclass(frozen=True)
class StackedSteps:
    """Steps of all ranks side by side (a `LocalWork`): row n has the n-th step of each rank.

    S is the greatest number of steps that any rank took. Rows beyond a rank's last step are not
    counted.
    """

    seconds: FloatArray
    samples: IntArray
    counted: BoolArray

    def of_rank(self, rank: int) -> FloatArray:
        """Return the seconds of each phase of a rank, [S, P]."""
        return self.seconds[:, rank]


def stack_steps(rank_timelines: Sequence[RankTimeline]) -> StackedSteps:
    """Stack the work of all ranks, without their waiting."""
    most = max(len(rank_timeline) for rank_timeline in rank_timelines)
    seconds = np.zeros((most, len(rank_timelines), PHASES))
    samples, counted = (
        np.zeros((most, len(rank_timelines)), dtype=np.int64),
        np.zeros((most, len(rank_timelines)), dtype=np.bool_),
    )
    for rank, rank_timeline in enumerate(rank_timelines):
        seconds[: len(rank_timeline), rank] = rank_timeline.before + rank_timeline.after
        samples[: len(rank_timeline), rank] = rank_timeline.taken
        counted[: len(rank_timeline), rank] = ~rank_timeline.warm_up
    return StackedSteps(seconds, samples, counted)


def find_async_causes(
    rank_timelines: Sequence[RankTimeline],
    work: StackedSteps,
    references: References,
    makespan_s: float,
) -> tuple[Cause, ...]:
    """Return the causes of all ranks; first and last steps are indices into the rank's own steps.

    Args:
        rank_timelines: timeline of every rank.
        work: the same steps, side by side.
        references: references fitted to `work`.
        makespan_s: makespan of the run; a rank that spends under 1 % of it on a family has no
            cause of that family.
    """
    found: list[Cause] = []
    drift = _measure_drift(rank_timelines, work, references, makespan_s)
    for rank, rank_timeline in enumerate(rank_timelines):
        usable = np.flatnonzero(work.counted[:, rank])
        if len(usable) < MIN_STEPS:
            continue
        local: list[Cause] = []
        for family in LOCAL_FAMILIES:
            series = _build_series(work, references, family, rank, usable)
            codes = list(family.codes)
            if work.seconds[usable, rank][:, codes].sum() >= MIN_MAKESPAN_SHARE * makespan_s:
                moved = drift(rank_timeline.ready_s[usable])
                steady = replace(series, own=series.own - moved)
                (levels,) = measure_series_levels([steady])
                local += find_series_causes(steady, levels, family.name, rank)
        found += _add_transfer_causes(
            local, rank_timeline, work.counted[: len(rank_timeline), rank], rank, makespan_s
        )
    return tuple(found)


def _build_series(
    work: StackedSteps, references: References, family: FamilySpec, rank: int, usable: IntArray
) -> LogRatioSeries:
    codes = list(family.codes)
    own = references.own.total(rank, codes)[usable]
    fleet = references.fleet.total(rank, codes)[usable]
    seconds = work.seconds[usable, rank][:, codes].sum(axis=1)
    return LogRatioSeries(
        compute_log_ratio(seconds, own), compute_log_ratio(own, fleet), usable, references.scatter
    )


class _DriftCurve:
    """Slowdown (log) that three quarters of the ranks share at a time, against their usual."""

    def __init__(self, grid_s: FloatArray, drift: FloatArray) -> None:
        self._grid_s, self._drift = grid_s, drift

    def __call__(self, time_s: FloatArray) -> FloatArray:
        return np.interp(time_s, self._grid_s, self._drift)


def _measure_drift(
    rank_timelines: Sequence[RankTimeline],
    work: StackedSteps,
    references: References,
    makespan_s: float,
) -> _DriftCurve:
    usable = [np.flatnonzero(work.counted[:, rank]) for rank in range(len(rank_timelines))]
    points = int(np.median([len(each) for each in usable]))
    # Asynchronous ranks have no common steps, so their ratios are compared at common times.
    grid_s = np.linspace(0.0, makespan_s, max(points, 2))
    logs = [
        np.interp(
            grid_s,
            rank_timeline.ready_s[steps],
            _build_series(work, references, COMPUTE, rank, steps).own,
        )
        if len(steps)
        else np.zeros(len(grid_s))
        for rank, (rank_timeline, steps) in enumerate(zip(rank_timelines, usable, strict=True))
    ]
    return _DriftCurve(grid_s, estimate_shared_drift(np.stack(logs, axis=1)))


def transfer_s(rank_timeline: RankTimeline) -> FloatArray:
    """Return the seconds for which a rank waits for data in each step, [N].

    Peer to peer, only the time after a message was sent counts. With a server, all communication
    with it counts.
    """
    return (
        rank_timeline.message_s
        if rank_timeline.is_peer_to_peer
        else rank_timeline.before[:, _COMM] + rank_timeline.after[:, _COMM]
    )


def usual_transfer_s(rank_timeline: RankTimeline) -> float:
    """Return the median of `transfer_s` over the steps that have any, outside warm-up."""
    seconds = transfer_s(rank_timeline)[~rank_timeline.warm_up]
    return float(np.median(seconds[seconds > 0])) if (seconds > 0).any() else 0.0


def _add_transfer_causes(
    local: list[Cause],
    rank_timeline: RankTimeline,
    counted: BoolArray,
    rank: int,
    makespan_s: float,
) -> list[Cause]:
    """Add the slow intervals of a rank's transfers to its causes.

    An interval that coincides with slow compute of the same rank is charged to that cause instead
    (see `find_transfer_causes`).
    """
    usable = np.flatnonzero(counted & (transfer_s(rank_timeline) > 0))
    seconds = transfer_s(rank_timeline)[usable]
    if len(usable) < 2 * MIN_STEPS or seconds.sum() < MIN_MAKESPAN_SHARE * makespan_s:
        return local
    own = compute_log_ratio(seconds, np.full(len(seconds), usual_transfer_s(rank_timeline)))
    series = LogRatioSeries(own, np.zeros(len(own)), usable, 0.0)
    (levels,) = measure_series_levels([series])
    found = find_series_causes(series, levels, NETWORK.name, rank)
    marked = list(local)
    for cause in (each for each in found if each.kind == "dynamic"):
        culprits = [i for i, c in enumerate(marked) if is_starving(c, cause.first, cause.last)]
        if not culprits:
            marked.append(cause)
        for index in culprits:
            marked[index] = replace(marked[index], burdens_transfer=(cause.first, cause.last))
    return marked
