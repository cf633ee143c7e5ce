"""Waiting of ranks for one another that no cause explains.

The schedule is replayed without all causes. What ranks then still wait has two parts: that of
jitter, which makes every rank late by turns, and the rest, which is unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.intervals import TO_SIGMA
from laggard.analysis.detection.short_slowness import find_upper_quartile_of_others
from laggard.analysis.replay.lockstep.maxplus import Schedule
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.timelines.timeline import ROWS_AT_ONCE

MIN_BARRIERS = 10
"""Least number of a collective's occurrences in which its jitter can be told from a cause."""
JITTER_SIGMAS = 3.5


@dataclass(frozen=True)
class RankWaits:
    """Waiting of W ranks for one another; seconds are means over the ranks.

    Attributes:
        wait_s: mean seconds that a rank waits for others.
        caused_s: seconds that the other ranks wait for each rank, divided by their number, [W].
        times_last: number of barriers at which each rank is the last to arrive, [W].
        barriers: number of barriers at which a rank waits.
    """

    wait_s: float
    caused_s: FloatArray
    times_last: IntArray
    barriers: int


@dataclass(frozen=True)
class ResidualWaits(RankWaits):
    """Waiting without all causes.

    Attributes:
        jitter_s: mean seconds that jitter alone would make a rank wait.
    """

    jitter_s: float

    @property
    def unexplained_s(self) -> float:
        """Return the mean seconds of waiting that neither causes nor jitter explain."""
        return max(self.wait_s - self.jitter_s, 0.0)


def measure_waits(schedule: Schedule) -> RankWaits:
    """Measure the waiting in a schedule; its last barrier, the end of the run, does not count."""
    world = schedule.local.shape[1]
    wait_s, caused_s, times_last = _replay_waits(schedule)
    return RankWaits(
        wait_s / world, caused_s / max(world - 1, 1), times_last, int(times_last.sum())
    )


def measure_residual_waits(schedule: Schedule, group: IntArray) -> ResidualWaits:
    """Measure the waiting in a schedule from which all causes have been removed.

    Args:
        schedule: durations without the causes. Its local work is overwritten, since arrays of a
            long run are large.
        group: number of the collective within its step of each barrier but the last, [E];
            negative for a pause.
    """
    waits = measure_waits(schedule)
    _reduce_to_jitter(schedule.local, group)
    return ResidualWaits(
        waits.wait_s,
        waits.caused_s,
        waits.times_last,
        waits.barriers,
        jitter_s=measure_waits(schedule).wait_s,
    )


def _replay_waits(schedule: Schedule) -> tuple[float, FloatArray, IntArray]:
    """Return the seconds of all waits, those caused by each rank, and how often it was last.

    The end of the run is no barrier at which ranks wait.
    """
    count, world = len(schedule.local) - 1, schedule.local.shape[1]
    full: BoolArray = np.logical_and.reduce(schedule.depends & schedule.member, axis=1)
    caused, times_last = np.zeros(world), np.zeros(world, dtype=np.int64)
    total, clock = 0.0, np.zeros(world)
    for begin in range(0, count, ROWS_AT_ONCE):
        rows = np.s_[begin : min(begin + ROWS_AT_ONCE, count)]
        arrival = schedule.local[rows].copy()
        # After a barrier at which all ranks waited, clocks count from it; this needs no loop.
        before = np.vstack([clock, schedule.transfer[rows][:-1]])
        arrival += before
        for row in np.flatnonzero(~full[rows]).tolist():
            if row + 1 < len(arrival):
                leaving = _compute_leaving(schedule, begin + row, arrival[row])
                arrival[row + 1] += leaving - before[row + 1]
        clock = _compute_leaving(schedule, begin + len(arrival) - 1, arrival[-1])
        member = schedule.member[rows]
        late = np.where(member, arrival, -np.inf)
        latest, last = late.max(axis=1), late.argmax(axis=1)
        waits = np.where(member & schedule.depends[rows], latest[:, None] - arrival, 0.0)
        waited = waits.sum(axis=1)
        total += float(waited.sum())
        caused += np.bincount(last, waited, world)
        times_last += np.bincount(last[waited > 0], minlength=world)
    return total, caused, times_last


def _compute_leaving(schedule: Schedule, barrier: int, arrival: FloatArray) -> FloatArray:
    """Return when ranks leave a barrier, counted from the latest arrival at it, [W]."""
    member = schedule.member[barrier]
    latest = arrival[member].max()
    leaving: FloatArray = np.where(
        member & schedule.depends[barrier],
        schedule.transfer[barrier],
        arrival - latest + schedule.own[barrier],
    )
    return leaving


def _reduce_to_jitter(local: FloatArray, group: IntArray) -> None:
    """Replace durations by the jitter of ranks about their own usual durations, in place.

    Deviations beyond 3.5 standard deviations are cut, unless most other ranks have such deviations
    too: spikes that every rank has are part of the jitter.
    """
    numbers, counts = np.unique(group, return_counts=True)
    judged = numbers[(numbers >= 0) & (counts >= MIN_BARRIERS)]
    rows_of = [np.flatnonzero(group == number) for number in judged]
    rest = np.append(~np.isin(group, judged), True)
    local[rest] = 0.0
    for rows in rows_of:
        bound, largest = np.empty(local.shape[1]), np.empty(local.shape[1])
        # One rank at a time, because arrays of all ranks are large.
        for rank in range(local.shape[1]):
            deviation = local[rows, rank] - np.median(local[rows, rank])
            bound[rank] = JITTER_SIGMAS * TO_SIGMA * np.median(np.abs(deviation))
            largest[rank] = deviation.max()
            local[rows, rank] = deviation
        bound = np.maximum(bound, find_upper_quartile_of_others(largest))
        for rank in range(local.shape[1]):
            local[rows, rank] = np.clip(local[rows, rank], -bound[rank], bound[rank])
