"""Slow intervals of one series of log ratios: change points, levels and thresholds.

Change points come from `change_points.py`, on the series in units of its noise. Spikes are clipped
first, so that heavy tails do not appear as changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from laggard.analysis.detection.change_points import find_change_points
from laggard.analysis.tables.columns import BoolArray, FloatArray

# The definition of slow: the ratio, for so many steps, with such a robust z.
MIN_RATIO = 1.10
MIN_STEPS = 10
MIN_Z = 3.5
MIN_SCALE = 0.02
MERGE_RATIO = 0.5
CLIP_SIGMAS = 3.0
MEDIAN_WINDOW = 9
TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""
# The distance from the median to a quartile, in standard deviations.
_QUARTILE_SIGMAS = 0.6745


@dataclass(frozen=True)
class Segment:
    """Steps [first, last] (indices, inclusive) at one level.

    `level` is the median log ratio of the steps, `quartile` their lower quartile.
    """

    first: int
    last: int
    level: float
    quartile: float

    @property
    def length(self) -> int:
        """Return the number of steps."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Levels:
    """Segments of a series, and the error of a median of its steps.

    Attributes:
        segments: consecutive segments that cover the series.
        sigma: standard deviation of the noise from step to step.
        jitter: standard error of a ten-step median due to noise that is independent from step to
            step.
        wander: remaining scatter of ten-step medians, which does not average out over longer
            intervals; at least 2 %.
    """

    segments: tuple[Segment, ...]
    sigma: float
    jitter: float
    wander: float

    def error(self, length: int) -> float:
        """Return the standard error of the median (log) of an interval of `length` steps."""
        return math.hypot(self.jitter * math.sqrt(MIN_STEPS / max(length, 1)), self.wander)

    def z(self, part: Segment, baseline: float) -> float:
        """Return the robust z of an interval: its distance to the baseline over its error."""
        return (part.level - baseline) / self.error(part.length)

    def confidence(self, excess: float, length: int) -> float:
        """Return the probability that the true ratio of an interval is 1.10 or more.

        Args:
            excess: measured log ratio.
            length: number of steps over which it was measured; errors are taken as normal.
        """
        return compute_confidence(excess, self.error(length))


def compute_confidence(level: float, error: float) -> float:
    """Return the probability that a true ratio is 1.10 or more.

    Args:
        level: measured log ratio.
        error: its standard error; errors are taken as normal.
    """
    return 0.5 * (1.0 + math.erf((level - math.log(MIN_RATIO)) / error / math.sqrt(2.0)))


def measure_segment(values: FloatArray, first: int, last: int) -> Segment:
    """Return the segment of steps [first, last] of a series."""
    quartile, level = np.quantile(values[first : last + 1], (0.25, 0.5))
    return Segment(first, last, float(level), float(quartile))


def running_median(values: FloatArray, window: int = MEDIAN_WINDOW) -> FloatArray:
    """Return the centered running median of a series.

    The series is mirrored beyond its ends. Repeating the end value instead would make it the
    median there.
    """
    half = window // 2
    padded = np.pad(values, half, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    medians: FloatArray = np.partition(windows, half, axis=-1)[:, half]
    return medians


def running_mean(values: FloatArray, window: int = MEDIAN_WINDOW) -> FloatArray:
    """Return the centered running mean of a series; windows are cut at its ends."""
    half = window // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    means: FloatArray = (sums[high] - sums[low]) / (high - low)
    return means


def estimate_noise_sigma(values: FloatArray) -> float:
    """Return the standard deviation of step-to-step noise, at least 0.001.

    First differences are used, so changes of level do not count.
    """
    if len(values) < 2:
        return MIN_SCALE
    return max(TO_SIGMA * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2.0), 1e-3)


def segment_series(values: FloatArray) -> Levels:
    """Cut a series of log ratios where its level changes (see `segment_all`)."""
    (levels,) = segment_all([values])
    return levels


def segment_all(series: Sequence[FloatArray]) -> Iterator[Levels]:
    """Cut several series of log ratios where their levels change.

    Args:
        series: log ratios per step, [N] each, without gaps.

    Yields:
        Segments that cover each series, and its noise. Change points are at least ten steps apart
        before they are refined.
    """
    sigmas = [estimate_noise_sigma(values) for values in series]
    scaled = (
        _clip_spikes(values, sigma) / sigma for values, sigma in zip(series, sigmas, strict=True)
    )
    found = find_change_points(scaled, MIN_STEPS)
    for values, sigma, points in zip(series, sigmas, found, strict=True):
        yield _measure_levels(values, sigma, points)


def _clip_spikes(values: FloatArray, sigma: float) -> FloatArray:
    smooth = running_median(values)
    return smooth + np.clip(values - smooth, -CLIP_SIGMAS * sigma, CLIP_SIGMAS * sigma)


def _measure_levels(values: FloatArray, sigma: float, points: list[int]) -> Levels:
    bounds = refine_bounds(values, [0, *points, len(values)])
    segments = tuple(measure_segment(values, a, b - 1) for a, b in pairwise(bounds) if b > a)
    jitter = sigma * math.sqrt(math.pi / 2.0 / MIN_STEPS)
    scatter = _estimate_scatter(values, segments)
    wander = math.sqrt(max(scatter**2 - jitter**2, 0.0))
    return Levels(segments, sigma, jitter, math.hypot(wander, MIN_SCALE))


def refine_bounds(values: FloatArray, bounds: list[int]) -> list[int]:
    """Move each change point to where the absolute deviations from adjacent levels are least.

    A deviation counts at most as much as the step between the two levels, so a spike cannot
    attract a bound.

    Args:
        values: log ratio per step, [N].
        bounds: ascending bounds of the segments, including the ends of the examined part.

    Returns:
        The bounds; the first and the last are unchanged. A bound moves by at most `MEDIAN_WINDOW`
        steps and half a segment.
    """
    moved = list(bounds)
    for index in range(1, len(bounds) - 1):
        if bounds[index] <= moved[index - 1] or bounds[index + 1] <= bounds[index]:
            continue
        left = float(np.median(values[moved[index - 1] : bounds[index]]))
        right = float(np.median(values[bounds[index] : bounds[index + 1]]))
        reach = min(
            MEDIAN_WINDOW,
            (bounds[index] - moved[index - 1]) // 2,
            (bounds[index + 1] - bounds[index]) // 2,
        )
        around = values[bounds[index] - reach : bounds[index] + reach]
        step = abs(right - left)
        gain = np.minimum(np.abs(around - left), step) - np.minimum(np.abs(around - right), step)
        loss = np.concatenate([[0.0], np.cumsum(gain)])
        moved[index] += int(np.argmin(loss)) - reach
    return moved


def _estimate_scatter(values: FloatArray, segments: tuple[Segment, ...]) -> float:
    """Return the robust standard deviation of ten-step medians about their segments' levels."""
    tens = [part.length // MIN_STEPS for part in segments]
    if sum(tens) < 3:
        return 0.0
    off = [
        np.abs(
            np.median(values[part.first : part.first + n * MIN_STEPS].reshape(n, MIN_STEPS), axis=1)
            - part.level
        )
        for part, n in zip(segments, tens, strict=True)
    ]
    return TO_SIGMA * float(np.median(np.concatenate(off)))


def find_baseline_level(levels: Levels, at_normal: float | None = None) -> float:
    """Return the normal level of a series: the fastest one that it kept for a third of the steps.

    Args:
        levels: segments of the series.
        at_normal: level known to be normal. Segments below 1.10 times this level then suffice if
            they last for a tenth of the steps, and for at least ten steps.

    Returns:
        A log ratio; the faster one if both rules apply.
    """
    ordered = sorted(levels.segments, key=lambda part: part.level)
    total = sum(part.length for part in ordered)
    covered = np.cumsum([part.length for part in ordered])
    kept = ordered[int(np.searchsorted(covered, total / 3))].level if ordered else 0.0
    if at_normal is not None:
        normal = [part for part in ordered if part.level < at_normal + math.log(MIN_RATIO)]
        if normal and sum(part.length for part in normal) >= max(total / 10, MIN_STEPS):
            return min(kept, _compute_weighted_median(normal))
    return kept


def find_slow_intervals(values: FloatArray, levels: Levels, baseline: float) -> tuple[Segment, ...]:
    """Return the intervals that are slow by the definition.

    Slow means a ratio of at least 1.10 to the baseline, for at least ten steps, with a robust z of
    at least 3.5, and steadily (see `is_steadily_raised`).

    Args:
        values: series that `levels` was cut from.
        levels: segments of the series.
        baseline: log ratio of the normal level.

    Returns:
        Maximal runs of adjacent slow segments whose slowness (in log) is within a factor of two.
        The level of a run is the median of its steps.
    """
    runs: list[tuple[int, int]] = []
    before = -math.inf
    for part in levels.segments:
        excess = part.level - baseline
        if is_raised(part, levels, baseline):
            joined = (
                runs
                and runs[-1][1] + 1 == part.first
                and min(excess, before) >= MERGE_RATIO * max(excess, before)
            )
            runs.append((runs.pop()[0] if joined else part.first, part.last))
        before = excess
    found = []
    for first, last in runs:
        bounds = [
            max(first - 2 * MIN_STEPS, 0),
            first,
            last + 1,
            min(last + 1 + 2 * MIN_STEPS, len(values)),
        ]

        _, begin, end, _ = refine_bounds(values, bounds)
        if end > begin:
            found.append(measure_segment(values, begin, end - 1))
    return tuple(part for part in found if is_slow(part, levels, baseline))


def is_raised(part: Segment, levels: Levels, baseline: float) -> bool:
    """Return whether a segment's median is slow: ratio >= 1.10 and robust z >= 3.5."""
    return part.level - baseline >= math.log(MIN_RATIO) and levels.z(part, baseline) >= MIN_Z


def is_slow(part: Segment, levels: Levels, baseline: float) -> bool:
    """Return whether an interval is slow by the definition: ten steps or more, steadily raised."""
    return part.length >= MIN_STEPS and is_steadily_raised(part, levels, baseline)


def is_steadily_raised(part: Segment, levels: Levels, baseline: float) -> bool:
    """Return whether an interval of any length is slow throughout.

    It is, if three quarters of its steps are at least half as slow (in log) as its median, within
    the noise. A few spikes within ten steps do not fulfill this.
    """
    steady = (
        part.quartile - baseline >= (part.level - baseline) / 2.0 - _QUARTILE_SIGMAS * levels.sigma
    )
    return steady and is_raised(part, levels, baseline)


def estimate_shared_drift(logs: FloatArray) -> FloatArray:
    """Return the slowdown (or speedup) that at least three quarters of the ranks share, in log.

    Such a change comes from the machine under the ranks, not from a rank. Two details matter:

    - Each rank is compared with the level that it reached or undercut in a third of the steps, not
      with its median. Otherwise ranks that are slow for most of the run would seem to speed up
      together in the rest of it.
    - Each rank is smoothed before ranks are compared. The quartile of jittering values would move
      with the jitter if some of the ranks are slow.

    Args:
        logs: log ratio to each rank's own usual duration, [N, W].

    Returns:
        Smoothed lower quartile over the ranks minus its median, [N]; 0 for a single rank or fewer
        than nine steps.
    """
    if logs.shape[1] < 2 or len(logs) < MEDIAN_WINDOW:
        return np.zeros(len(logs))
    smooth = np.empty_like(logs)
    for rank, column in enumerate(logs.T):
        medians = running_median(column, 2 * MEDIAN_WINDOW + 1)
        smooth[:, rank] = medians - np.quantile(medians, 1 / 3)
    quartile = np.quantile(smooth, 0.25, axis=1, method="lower", overwrite_input=True)
    return quartile - float(np.median(quartile))


def _compute_weighted_median(parts: list[Segment]) -> float:
    levels = np.repeat([part.level for part in parts], [part.length for part in parts])
    return float(np.median(levels))


def to_mask(intervals: tuple[Segment, ...], length: int) -> BoolArray:
    """Return a mask of the steps that the intervals cover, [length]."""
    mask = np.zeros(length, dtype=np.bool_)
    for part in intervals:
        mask[part.first : part.last + 1] = True
    return mask
