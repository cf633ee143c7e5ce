"""Waiting of ranks for one another that no cause explains.

The schedule is replayed without all causes. What ranks then still wait has two parts: that of
jitter, which makes every rank late by turns, and the rest, which is unexplained. Two kinds of ranks
wait for one another even without jitter, which explains this waiting, too: the stages of a
pipeline, and ranks that wait while others exchange data, as in averages first within tiers and then
across them.
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
        structure_s: mean seconds that a rank would wait if all jitter were gone too.
        is_pipeline: whether the ranks are stages of a pipeline.
    """

    jitter_s: float
    structure_s: float = 0.0
    is_pipeline: bool = False

    @property
    def unexplained_s(self) -> float:
        """Return the mean seconds of waiting that no cause, jitter or structure explains."""
        return max(self.wait_s - self.jitter_s - self.structure_s, 0.0)


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
    waits, is_pipeline = measure_waits(schedule), len(timeline.teams) > 1
    usual = _measure_usual_work(schedule.local, timeline) if is_pipeline else None
    _reduce_to_jitter(schedule.local, timeline.group)
    if usual is not None:
        np.add(schedule.local, usual, out=schedule.local)
    with_jitter_s = measure_waits(schedule).wait_s
    # Outside a pipeline all ranks do the same work, so only transfers are left.
    schedule.local[:] = 0.0 if usual is None else usual
    transfer = _find_usual_transfers(schedule.transfer, timeline.group)
    structure_s = measure_waits(replace(schedule, transfer=transfer)).wait_s
    return ResidualWaits(
        waits.wait_s,
        waits.caused_s,
        waits.times_last,
        waits.barriers,
        jitter_s=max(with_jitter_s - structure_s, 0.0),
        structure_s=structure_s,
        is_pipeline=is_pipeline,
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


def _find_usual_transfers(transfer: FloatArray, group: IntArray) -> FloatArray:
    """Return the median of each rank's transfers in all occurrences of a collective."""
    usual = transfer.copy()
    numbers, counts = np.unique(group, return_counts=True)
    for number in numbers[counts >= MIN_BARRIERS]:
        rows = np.flatnonzero(group == number)
        usual[rows] = np.median(transfer[rows], axis=0)
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
