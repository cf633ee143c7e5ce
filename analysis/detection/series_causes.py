"""Causes of one series: intervals slower than usual, and slowness throughout the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    segment_all,
    to_mask,
)
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.core.run_schema import StragglerFamily

DETERMINISTIC_SHARE = 0.9
"""Share of the steps that a deterministic cause must cover."""
MIN_MAKESPAN_SHARE = 0.01
"""Share of the makespan that work must take for its slowness to be examined."""
MERGE_OVERLAP_SHARE = 0.5
"""Share of a slow transfer's steps during which a slow host explains it."""


@dataclass(frozen=True)
class LogRatioSeries:
    """Log ratios of one rank's work of a family over the usable steps.

    Attributes:
        own: ratio of the measured to the rank's own usual duration.
        to_fleet: ratio of the rank's usual duration to the fleet's.
        usable: indices of the steps.
        fleet_scatter: scatter (log) of equal hosts.
    """

    own: FloatArray
    to_fleet: FloatArray
    usable: IntArray
    fleet_scatter: float


@dataclass(frozen=True)
class SeriesLevels:
    """Levels of a series, and the normal one of them, as a log ratio."""

    levels: Levels
    baseline: float


def measure_series_levels(series: Sequence[LogRatioSeries]) -> list[SeriesLevels]:
    """Cut each series where its level changes, and find its normal level."""
    return [
        SeriesLevels(levels, find_baseline_level(levels, -float(np.median(each.to_fleet))))
        for each, levels in zip(series, segment_all([each.own for each in series]), strict=True)
    ]


def find_series_causes(
    series: LogRatioSeries, measured: SeriesLevels, family: StragglerFamily, rank: int
) -> list[Cause]:
    """Return the deterministic cause of a series, if any, followed by its dynamic causes."""
    levels, baseline = measured.levels, measured.baseline
    intervals = find_slow_intervals(series.own, levels, baseline)
    whole = len(series.own)
    # An interval over the whole series is no change; it can only be deterministic.
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
    """Return the level against the fleet outside dynamic intervals, and its confidence.

    The result is None unless 90 % of the steps are slow. Equal hosts are never quite equal, so
    their scatter counts as error here.
    """
    against_fleet = series.own + series.to_fleet
    levels = replace(levels, wander=math.hypot(levels.wander, series.fleet_scatter))
    slow_steps = 0
    for part in levels.segments:
        measured = measure_segment(against_fleet, part.first, part.last)
        # Segments too short to be intervals count too: a host that is slow throughout may be even
        # slower for a moment.
        slow_steps += part.length if is_steadily_raised(measured, levels, 0.0) else 0
    if slow_steps < DETERMINISTIC_SHARE * len(series.own) or dynamic.all():
        return None
    level = float(np.median(against_fleet[~dynamic]))
    if level < math.log(MIN_RATIO):
        return None
    return level, levels.confidence(level, int((~dynamic).sum()))


def is_starving(cause: Cause, first: int, last: int) -> bool:
    """Return whether a cause is slow compute that explains slow transfers from `first` to `last`.

    A host that is short of CPU time also reduces slowly. Its dynamic slowness must cover half of
    the transfer's steps.
    """
    shared = cause.overlap(first, last)
    return (
        cause.kind == "dynamic"
        and cause.spec.uses_processor
        and shared >= MERGE_OVERLAP_SHARE * (last - first + 1)
    )
