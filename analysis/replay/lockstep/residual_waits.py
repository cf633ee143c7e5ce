"""Waiting of ranks for one another that no cause explains.

The schedule is replayed without all causes. What ranks then still wait has two parts: that of
jitter, which makes every rank late by turns, and the rest, which is unexplained. The stages of a
pipeline wait for one another even without jitter; this waiting is explained, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.intervals import TO_SIGMA
from laggard.analysis.detection.short_slowness import find_upper_quartile_of_others
from laggard.analysis.replay.lockstep.saved_time import find_lower_quartile
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.simulation.maxplus import Schedule, walk_schedule

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
        pipeline_s: mean seconds that the usual work of the stages of a pipeline makes a rank wait.
    """

    jitter_s: float
    pipeline_s: float = 0.0

    @property
    def unexplained_s(self) -> float:
        """Return the mean seconds of waiting that no cause, jitter or pipeline explains."""
        return max(self.wait_s - self.jitter_s - self.pipeline_s, 0.0)


def measure_waits(schedule: Schedule) -> RankWaits:
    """Measure the waiting in a schedule; its last barrier, the end of the run, does not count."""
    world = schedule.local.shape[1]
    wait_s, caused_s, times_last = _replay_waits(schedule)
    return RankWaits(
        wait_s / world, caused_s / max(world - 1, 1), times_last, int(times_last.sum())
    )


def measure_residual_waits(schedule: Schedule, timeline: Timeline) -> ResidualWaits:
    """Measure the waiting in a schedule from which all causes have been removed.

    Args:
        schedule: durations without the causes. Its local work is overwritten, since arrays of a
            long run are large.
        timeline: timeline of the run.
    """
    waits = measure_waits(schedule)
    usual = _measure_usual_work(schedule.local, timeline) if len(timeline.teams) > 1 else None
    _reduce_to_jitter(schedule.local, timeline.group)
    pipeline_s = 0.0
    if usual is not None:
        pipeline_s = measure_waits(replace(schedule, local=usual)).wait_s
        np.add(schedule.local, usual, out=schedule.local)
    return ResidualWaits(
        waits.wait_s,
        waits.caused_s,
        waits.times_last,
        waits.barriers,
        jitter_s=max(measure_waits(schedule).wait_s - pipeline_s, 0.0),
        pipeline_s=pipeline_s,
    )


def _measure_usual_work(local: FloatArray, timeline: Timeline) -> FloatArray:
    """Return the seconds that the stage of each rank usually works before each barrier."""
    usual = np.zeros_like(local)
    group = np.append(timeline.group, timeline.group.max(initial=0) + 1)
    for rank in range(local.shape[1]):
        team, rows = timeline.team_of(rank), timeline.match_team_barriers(rank)
        if rows is None:
            usual[:, rank] = local[:, rank]
            continue
        own = rows[:, team.index(rank)]
        seconds = find_lower_quartile(local[rows, list(team)])
        for number in np.unique(group[own]):
            at = group[own] == number
            usual[own[at], rank] = np.median(seconds[at])
    return usual


def _replay_waits(schedule: Schedule) -> tuple[float, FloatArray, IntArray]:
    """Return the seconds of all waits, those caused by each rank, and how often it was last.

    The end of the run is no barrier at which ranks wait.
    """
    end, world = len(schedule.local) - 1, schedule.local.shape[1]
    caused, times_last = np.zeros(world), np.zeros(world, dtype=np.int64)
    total = 0.0
    for each in walk_schedule(schedule):
        member = schedule.member[each.barriers]
        last = np.where(member, each.arrival_s, -np.inf).argmax(axis=1)
        posted = schedule.posted[each.barriers[each.waits_for_post]]
        last[each.waits_for_post] = schedule.member[posted].argmax(axis=1)
        is_waiting = member & schedule.depends[each.barriers] & (each.barriers < end)[:, None]
        waited = np.where(is_waiting, each.latest_s[:, None] - each.arrival_s, 0.0).sum(axis=1)
        total += float(waited.sum())
        caused += np.bincount(last, waited, world)
        times_last += np.bincount(last[waited > 0], minlength=world)
    return total, caused, times_last


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
