"""Slow intervals of one series of log ratios: change points, levels, and which of them are too slow
for too long.

Change points by kernel change-point detection (Arlot, Celisse and Harchaoui, JMLR 2019; linear
kernel, as implemented by ruptures, penalty 4 ln n on the series in units of its noise). Spikes are
clipped first, so that heavy tails are no changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from laggard.analysis.tables.columns import BoolArray, FloatArray

MIN_RATIO = 1.10
MIN_STEPS = 10
MIN_Z = 3.5
MIN_SCALE = 0.02
MERGE_RATIO = 0.5
CLIP_SIGMAS = 3.0
MEDIAN_WINDOW = 9
_CHUNK = 4000
_TO_SIGMA = 1.4826
_QUARTILE_SIGMAS = 0.6745


@dataclass(frozen=True)
class Segment:
    """Steps [first, last] (indices, inclusive) at one level (median log ratio), with their lower
    quartile.
    """

    first: int
    last: int
    level: float
    quartile: float

    @property
    def length(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Levels:
    """A series cut into segments, and how far a median of its steps strays from its segment's
    level.

    Attributes:
        segments: they cover the series.
        sigma: noise from step to step.
        jitter: standard error of a ten-step median from noise that is independent from step to
            step.
        wander: the rest of ten-step medians' scatter, which does not average out over longer
            intervals; 2 % or more.
    """

    segments: tuple[Segment, ...]
    sigma: float
    jitter: float
    wander: float

    def error(self, length: int) -> float:
        """Standard error of the median (log) of an interval of `length` steps."""
        return math.hypot(self.jitter * math.sqrt(MIN_STEPS / max(length, 1)), self.wander)

    def z(self, part: Segment, baseline: float) -> float:
        """Robust z of an interval: its distance to the baseline over its error."""
        return (part.level - baseline) / self.error(part.length)

    def confidence(self, excess: float, length: int) -> float:
        """Probability that a ratio measured as `exp(excess)` over `length` steps truly is 1.10 or
        more, errors being normal.
        """
        return 0.5 * (
            1.0 + math.erf((excess - math.log(MIN_RATIO)) / self.error(length) / math.sqrt(2.0))
        )


def measure_segment(values: FloatArray, first: int, last: int) -> Segment:
    """The level of steps [first, last] of a series."""
    quartile, level = np.quantile(values[first : last + 1], (0.25, 0.5))
    return Segment(first, last, float(level), float(quartile))


def running_median(values: FloatArray, window: int = MEDIAN_WINDOW) -> FloatArray:
    """Centred running median; beyond the ends the series is mirrored (one value repeated there
    would be the median by itself).
    """
    half = window // 2
    padded = np.pad(values, half, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    medians: FloatArray = np.partition(windows, half, axis=-1)[:, half]
    return medians


def running_mean(values: FloatArray, window: int = MEDIAN_WINDOW) -> FloatArray:
    """Centred running mean; at the ends of those that there are."""
    half = window // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    means: FloatArray = (sums[high] - sums[low]) / (high - low)
    return means


def estimate_noise_sigma(values: FloatArray) -> float:
    """Standard deviation of step-to-step noise from first differences, so that changes of level do
    not count.
    """
    if len(values) < 2:
        return MIN_SCALE
    return max(_TO_SIGMA * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2.0), 1e-3)


def segment_series(values: FloatArray) -> Levels:
    """Cuts a series of log ratios where its level changes.

    Args:
        values: log ratio per step, [N], without gaps.

    Returns:
        Segments of at least ten steps that cover the series, and its noise.
    """
    sigma = estimate_noise_sigma(values)
    smooth = running_median(values)
    clipped = smooth + np.clip(values - smooth, -CLIP_SIGMAS * sigma, CLIP_SIGMAS * sigma)
    bounds = refine_bounds(values, [0, *_find_change_points(clipped / sigma), len(values)])
    segments = tuple(measure_segment(values, a, b - 1) for a, b in pairwise(bounds) if b > a)
    jitter = sigma * math.sqrt(math.pi / 2.0 / MIN_STEPS)
    scatter = _estimate_scatter(values, segments)
    wander = math.sqrt(max(scatter**2 - jitter**2, 0.0))
    return Levels(segments, sigma, jitter, math.hypot(wander, MIN_SCALE))


def refine_bounds(values: FloatArray, bounds: list[int]) -> list[int]:
    """Moves each change to where the absolute deviations from the levels beside it are least
    (spikes count as one change).
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


def _find_change_points(values: FloatArray) -> list[int]:
    from ruptures import KernelCPD

    count = len(values)
    penalty = 4.0 * math.log(max(count, 2))
    points: list[int] = []
    for begin in range(0, count, _CHUNK):
        chunk = values[begin : begin + _CHUNK]
        if begin:
            points.append(begin)
        if len(chunk) >= 2 * MIN_STEPS:
            detector = KernelCPD(kernel="linear", min_size=MIN_STEPS, jump=1).fit(chunk[:, None])
            points += [begin + int(p) for p in detector.predict(pen=penalty)[:-1]]
    return points


def _estimate_scatter(values: FloatArray, segments: tuple[Segment, ...]) -> float:
    """Robust standard deviation of ten-step medians about their segments' levels."""
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
    return _TO_SIGMA * float(np.median(np.concatenate(off)))


def find_baseline_level(levels: Levels, at_normal: float | None = None) -> float:
    """The level a series is at when nothing is wrong: the fastest that it kept for a third of the
    steps or more.

    Args:
        levels: the segments.
        at_normal: a level known to be normal; segments within 10 % of it are then enough if they
            last a tenth of the steps.

    Returns:
        A log ratio: the faster of both.
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
    """Runs of slow segments: ratio >= 1.10 against the baseline, ten steps or more, robust z >=
    3.5, steadily so.

    Args:
        values: the series that `levels` was cut from.
        levels: its segments.
        baseline: log ratio of normal.

    Returns:
        Maximal runs of adjacent slow segments whose slowness (in log) is within a factor of two;
        the level is their median.
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
    """Whether a segment's median is slow: ratio >= 1.10 and robust z >= 3.5."""
    return part.level - baseline >= math.log(MIN_RATIO) and levels.z(part, baseline) >= MIN_Z


def is_slow(part: Segment, levels: Levels, baseline: float) -> bool:
    """Whether an interval is slow by the definition: long enough to be one, and steadily so."""
    return part.length >= MIN_STEPS and is_steadily_raised(part, levels, baseline)


def is_steadily_raised(part: Segment, levels: Levels, baseline: float) -> bool:
    """Whether an interval of any length is slow all through.

    Steady: three quarters of its steps are at least half as slow (in log) as its median, give or
    take the noise. A few spikes that happen to fall into ten steps are not.
    """
    steady = (
        part.quartile - baseline >= (part.level - baseline) / 2.0 - _QUARTILE_SIGMAS * levels.sigma
    )
    return steady and is_raised(part, levels, baseline)


def estimate_shared_drift(logs: FloatArray) -> FloatArray:
    """What slows (or speeds) at least three quarters of the ranks at once: the machine under them,
    not a rank.

    Each rank is held against what it did at least as fast for a third of the steps, not against its
    median: ranks that are slow for most of the run would else seem to speed up, together, in the
    rest of it. And it is smoothed before it is compared with the others: the quartile of what
    jitters moves with the jitter when some of the ranks are slow.

    Args:
        logs: log ratio to each rank's own usual, [N, W].

    Returns:
        Lower quartile over the ranks, smoothed, its median taken out, [N]; 0 for a single rank.
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
    """Which steps the intervals cover, [length]."""
    mask = np.zeros(length, dtype=np.bool_)
    for part in intervals:
        mask[part.first : part.last + 1] = True
    return mask
