"""Detector of slow local work: steps in which a rank's own phases take longer than usual."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.families import FamilySpec
from laggard.analysis.detection.intervals import MIN_STEPS
from laggard.analysis.detection.lockstep.cause_detector import DetectionInput
from laggard.analysis.detection.lockstep.family_work import FamilyWork, measure_family_work
from laggard.analysis.detection.lockstep.few_steps import find_few_step_causes
from laggard.analysis.detection.reference import compute_log_ratio
from laggard.analysis.detection.series_causes import (
    MIN_MAKESPAN_SHARE,
    LogRatioSeries,
    find_series_causes,
    measure_series_levels,
)
from laggard.analysis.detection.short_slowness import find_slow_steps
from laggard.analysis.tables.columns import FloatArray, IntArray


@dataclass(frozen=True)
class LocalWorkDetector:
    """Detector of deterministic and dynamic causes of one family of local work.

    Args:
        family: family of local work, with at least one phase.
    """

    family: FamilySpec

    def __call__(self, run: DetectionInput, found: tuple[Cause, ...]) -> tuple[Cause, ...]:
        """Add the causes of every rank to those already found.

        A rank that spends under 1 % of the makespan on the family has no cause of it.
        """
        usable = np.flatnonzero(~run.timeline.warm_up)
        if not len(usable):
            return found
        work = measure_family_work(run.timeline, run.references, self.family)
        least_s = MIN_MAKESPAN_SHARE * run.timeline.makespan
        ranks = [
            rank
            for rank in range(run.timeline.samples.shape[1])
            if work.taken_of(rank)[usable].sum() >= least_s
        ]
        if len(usable) < 2 * MIN_STEPS:
            return (*found, *find_few_step_causes(work, ranks, usable))
        series = {rank: self._build_series(run, work, rank, usable) for rank in ranks}
        measured = measure_series_levels(list(series.values()))
        levels = dict(zip(series, measured, strict=True))
        steady = {
            rank: find_series_causes(each, levels[rank], self.family.name, rank)
            for rank, each in series.items()
        }
        baselines = {rank: each.baseline for rank, each in levels.items()}
        found_steady = (cause for causes in steady.values() for cause in causes)
        short = _find_short_causes(work, series, baselines, steady, least_s)
        return (*found, *found_steady, *short)

    def _build_series(
        self, run: DetectionInput, work: FamilyWork, rank: int, usable: IntArray
    ) -> LogRatioSeries:
        own = work.own_of(rank)[usable]
        logs, moved = compute_log_ratio(work.seconds_of(rank)[usable], own), run.drift[usable]
        # Compute always follows the machine's drift. Another family is corrected only if that
        # makes its series steadier: a drive may keep its speed while the machine slows down.
        is_steadier = not self.family.uses_processor and _compute_median_deviation(
            logs
        ) <= _compute_median_deviation(logs - moved)
        to_fleet = compute_log_ratio(own, work.fleet_of(rank)[usable])
        return LogRatioSeries(
            logs if is_steadier else logs - moved, to_fleet, usable, run.references.scatter
        )


def _find_short_causes(
    work: FamilyWork,
    series: dict[int, LogRatioSeries],
    baselines: dict[int, float],
    steady: dict[int, list[Cause]],
    least_s: float,
) -> Iterator[Cause]:
    """Yield causes of slow steps outside the intervals that were found."""
    ranks = list(series)
    if not ranks:
        return
    usable = series[ranks[0]].usable
    logs = np.stack([series[rank].own - baselines[rank] for rank in ranks], axis=1)
    seconds = np.stack([work.seconds_of(rank)[usable] for rank in ranks], axis=1)
    examined = np.ones_like(logs, dtype=np.bool_)
    for column, rank in enumerate(ranks):
        for cause in steady[rank]:
            if cause.kind == "dynamic":
                examined[cause.covers(len(work.timeline.steps))[usable], column] = False
    slow = find_slow_steps(logs, seconds, examined, least_s)
    for rank, groups in zip(ranks, slow, strict=True):
        for group in groups:
            steps = usable[group.steps]
            yield Cause(
                work.family.name,
                "dynamic",
                rank,
                int(steps[0]),
                int(steps[-1]),
                math.exp(group.level),
                group.confidence,
                baselines[rank],
                steps=tuple(steps.tolist()),
                is_short=True,
            )


def _compute_median_deviation(logs: FloatArray) -> float:
    """Return the median absolute deviation of a series from its median."""
    return float(np.median(np.abs(logs - np.median(logs))))
