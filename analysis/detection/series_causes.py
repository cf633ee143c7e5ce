"""Causes of one series: intervals in which it was slower than usual, and slowness that lasts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import (
    MIN_RATIO,
    Levels,
    Segment,
    find_baseline_level,
    find_slow_intervals,
    is_steadily_raised,
    measure_segment,
    segment_series,
    to_mask,
)
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.core.run_schema import StragglerFamily

DETERMINISTIC_SHARE = 0.9
MIN_MAKESPAN_SHARE = 0.01
MERGE_OVERLAP_SHARE = 0.5


@dataclass(frozen=True)
class LogRatioSeries:
    """One rank's log ratios of a family over the usable steps: to its own usual, and that usual to
    the fleet's.

    `usable` are the steps' indices, `fleet_scatter` is how much equal hosts differ (log).
    """

    own: FloatArray
    to_fleet: FloatArray
    usable: IntArray
    fleet_scatter: float


def find_series_causes(series: LogRatioSeries, family: StragglerFamily, rank: int) -> list[Cause]:
    """The deterministic cause of a series, if it has one, and its dynamic ones."""
    levels = segment_series(series.own)
    baseline = find_baseline_level(levels, -float(np.median(series.to_fleet)))
    intervals = find_slow_intervals(series.own, levels, baseline)
    whole = len(series.own)
    dynamic = [part for part in intervals if part.first > 0 or part.last < whole - 1]
    found = [_build_dynamic_cause(part, series, levels, baseline, family, rank) for part in dynamic]
    deterministic = _measure_deterministic(series, levels, to_mask(tuple(dynamic), whole))
    if deterministic is not None:
        level, confidence = deterministic
        first, last = int(series.usable[0]), int(series.usable[-1])
        found.insert(
            0,
            Cause(
                family, "deterministic", rank, first, last, math.exp(level), confidence, baseline
            ),
        )
    return found


def _build_dynamic_cause(
    part: Segment,
    series: LogRatioSeries,
    levels: Levels,
    baseline: float,
    family: StragglerFamily,
    rank: int,
) -> Cause:
    return Cause(
        family=family,
        kind="dynamic",
        rank=rank,
        first=int(series.usable[part.first]),
        last=int(series.usable[part.last]),
        slowdown=math.exp(part.level - baseline),
        confidence=levels.confidence(part.level - baseline, part.length),
        baseline=baseline,
    )


def _measure_deterministic(
    series: LogRatioSeries, levels: Levels, dynamic: BoolArray
) -> tuple[float, float] | None:
    """Level against the fleet outside dynamic intervals, and confidence, if slow in 90 % of the
    steps.

    Equal hosts are never quite equal: how much they differ counts as error here.
    """
    against_fleet = series.own + series.to_fleet
    levels = replace(levels, wander=math.hypot(levels.wander, series.fleet_scatter))
    slow_steps = 0
    for part in levels.segments:
        measured = measure_segment(against_fleet, part.first, part.last)
        # Also of parts too short to be intervals: a host that is slow all along may be slower still
        # for a moment.
        slow_steps += part.length if is_steadily_raised(measured, levels, 0.0) else 0
    if slow_steps < DETERMINISTIC_SHARE * len(series.own) or dynamic.all():
        return None
    level = float(np.median(against_fleet[~dynamic]))
    if level < math.log(MIN_RATIO):
        return None
    return level, levels.confidence(level, int((~dynamic).sum()))


def is_starving(cause: Cause, first: int, last: int) -> bool:
    """Return whether transfers were slow from `first` to `last` because the host was."""
    shared = cause.overlap(first, last)
    return (
        cause.kind == "dynamic"
        and cause.spec.uses_processor
        and shared >= MERGE_OVERLAP_SHARE * (last - first + 1)
    )
