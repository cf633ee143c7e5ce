"""Many series of step times, each compared with its own running reference by Page's test.

A series is a rank's compute, its reading, or the transfers. The bank detects when a series becomes
slow and when it is back to normal. All state is in arrays of fixed size, so a step costs the same
however long the run is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.intervals import (
    MERGE_RATIO,
    MIN_RATIO,
    MIN_SCALE,
    MIN_STEPS,
    Levels,
    estimate_noise_sigma,
    is_steadily_raised,
    measure_segment,
    refine_bounds,
)
from laggard.analysis.detection.online.batch_cost import BatchCost
from laggard.analysis.detection.online.cusum import advance_sums, compute_thresholds, has_reached
from laggard.analysis.detection.online.machine_drift import compute_lower_quartile
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray

REFERENCE_STEPS = 100
"""Greatest number of normal steps whose median is the reference."""
LEAST_REFERENCE_STEPS = MIN_STEPS
"""Normal steps that a reference needs before it is used."""
RECENT_STEPS = 64
"""Latest steps in which the start of an interval and its slowdown are searched."""
# Normal steps between two computations of a reference; slow steps between two checks whether a
# slowdown has faded.
_REFIT_EVERY = 5
_CHECK_EVERY = 16
# Steps after which a step enters the reference, so that the beginning of a slowdown does not.
_DELAY_STEPS = 20
# Standard error of the median of n normal values, in units of sigma / sqrt(n).
_MEDIAN_ERROR = math.sqrt(math.pi / 2.0)
# Page's k: half of the shift to detect, which is the least ratio that counts as slow.
_TARGET_SHIFT = math.log(MIN_RATIO) / 2.0
_REFERENCE_ERRORS = 2.0
"""Standard errors by which a reference may be wrong. It stays wrong for many steps, and one of
many ranks has a greater error than most."""
_PERSISTENT_NOISE_FACTOR = 1.4
"""Noise of a sum relative to the noise of its steps. Subtracted drift and wrong references
cause errors of the same sign in many consecutive steps."""
_MIN_CONFIDENCE = 0.95
"""Least probability that a reported series is slow by the definition."""


@dataclass(frozen=True)
class StepInterval:
    """Number of a step, with its start and end in nanoseconds."""

    step: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class SlowdownStart:
    """Beginning of a slowdown of one series.

    Attributes:
        first: first slow step.
        length: steps since then, up to `RECENT_STEPS`.
        level: slowdown (median log ratio to the usual duration).
        confidence: probability that the true ratio is 1.10 or more.
    """

    first: StepInterval
    length: int
    level: float
    confidence: float


@dataclass(frozen=True)
class SlowdownEnd:
    """End of a slowdown: its last slow step, and the median log ratio of its latest steps."""

    last: StepInterval
    level: float


class SeriesBank:
    """All series of one family.

    The public arrays have one entry per series, [M]: `open` (a slowdown was reported and is not
    over), `learned_steps` (steps that entered the reference), `level` (log reference in seconds at
    the usual batch), `sigma` (noise of a step, in log) and `seconds` (total so far). `recent` has
    the latest log ratios, [M, `RECENT_STEPS`].

    Args:
        count: number of series, M.
        steps: average number of steps between two false alarms of one series.
    """

    def __init__(self, count: int, steps: float) -> None:
        self.count = count
        self.open: BoolArray = np.zeros(count, dtype=np.bool_)
        self.learned_steps: IntArray = np.zeros(count, dtype=np.int64)
        self.level: FloatArray = np.zeros(count)
        self.sigma: FloatArray = np.full(count, MIN_SCALE)
        self.seconds: FloatArray = np.zeros(count)
        self.cost = BatchCost(count)
        self.recent: FloatArray = np.zeros((count, RECENT_STEPS))
        self.seen: IntArray = np.zeros(count, dtype=np.int64)
        self._steps = steps
        self._reference: FloatArray = np.full((count, REFERENCE_STEPS), np.nan)
        self._samples: FloatArray = np.ones((count, REFERENCE_STEPS))
        self._when: IntArray = np.zeros((count, RECENT_STEPS, 3), dtype=np.int64)
        self._logs: FloatArray = np.zeros((count, RECENT_STEPS))
        self._sizes: FloatArray = np.ones((count, RECENT_STEPS))
        self._pending: IntArray = np.zeros(count, dtype=np.int64)
        self._allowance: FloatArray = np.full(count, _TARGET_SHIFT)
        self._threshold: FloatArray = np.ones(count)
        self._up: FloatArray = np.zeros(count)
        self._risen: IntArray = np.zeros(count, dtype=np.int64)
        self._down: FloatArray = np.zeros(count)
        self._fallen: IntArray = np.zeros(count, dtype=np.int64)
        self._end_threshold: FloatArray = np.ones(count)
        self._depth: FloatArray = np.zeros(count)
        self._length: IntArray = np.zeros(count, dtype=np.int64)

    @property
    def window(self) -> int:
        """Return the greatest number of normal steps whose median is the reference."""
        return REFERENCE_STEPS

    @property
    def known(self) -> BoolArray:
        """Return a mask of the series that have a reference, [M]."""
        return self.learned_steps >= LEAST_REFERENCE_STEPS

    @property
    def is_rising(self) -> BoolArray:
        """Return a mask of the series that are slow or at least halfway to an alarm, [M]."""
        risen: BoolArray = self.open | (self._up >= 0.5 * self._threshold)
        return risen

    @property
    def steps_since_rise(self) -> IntArray:
        """Return the steps since each series began to look slow, [M]; 0 if it does not."""
        return np.where(self.open, self._length, self._risen)

    def log_ratios(self, at: IntArray, seconds: FloatArray, samples: FloatArray) -> FloatArray:
        """Return the log ratio of durations to each series' reference, [m].

        It is 0 without a duration or without a reference.
        """
        is_known = (seconds > 0) & self.known[at]
        logs = (
            np.log(np.where(seconds > 0, seconds, 1.0))
            - self.cost.log_costs(samples)
            - self.level[at]
        )
        return np.where(is_known, logs, 0.0)

    def update(
        self,
        at: IntArray,
        seconds: FloatArray,
        samples: FloatArray,
        step_times: IntArray,
        drift: float = 0.0,
        warm_up: BoolArray | None = None,
    ) -> IntArray:
        """Process one step of some series.

        Args:
            at: indices of the series, [m], each at most once.
            seconds: durations, [m]; 0 if there was nothing to measure.
            samples: samples of the batches, [m].
            step_times: step, start and end, [m, 3].
            drift: slowdown (log) that the machine causes for all ranks; it is subtracted.
            warm_up: mask of steps to ignore, [m].

        Returns:
            Series whose sums have reached a threshold: an open one may be back to normal, another
            one may be slow.
        """
        self.seconds[at] += seconds
        counted = seconds > 0
        if warm_up is not None:
            counted &= ~warm_up
        if not counted.all():
            at, seconds, samples, step_times = (
                at[counted],
                seconds[counted],
                samples[counted],
                step_times[counted],
            )
        if not len(at):
            return at
        ratio = self.log_ratios(at, seconds, samples) - drift
        self._record_ratios(at, ratio, step_times)
        tested = self.known[at]
        self._test_rise(at, ratio, tested & ~self.open[at])
        self._test_fall(at, ratio, self.open[at])
        self._record_work(at, np.log(seconds) - drift, samples)
        self._update_reference(at[~self.open[at]])
        ended = has_reached(self._down[at], self._end_threshold[at]) | self._has_faded(at)
        done = np.where(self.open[at], ended, has_reached(self._up[at], self._threshold[at]))
        return at[done & tested]

    def open_slowdown(self, series: int, shared: float = 0.0) -> SlowdownStart | None:
        """Open a slowdown if the steps since the sum began to rise are slow by the definition.

        Args:
            series: index of a series whose sum has reached its threshold.
            shared: slowdown (log) that all ranks had in common during these steps.

        Returns:
            The slowdown, or None if the steps are not slow with sufficient confidence.
        """
        values, begin = self._recent_ratios(series, int(self._risen[series]))
        levels = self._levels(series)
        part = measure_segment(values - shared, begin, len(values) - 1)
        confidence = levels.confidence(part.level, part.length)
        if confidence < _MIN_CONFIDENCE or not is_steadily_raised(part, levels, 0.0):
            return None
        self.open[series] = True
        self._up[series] = self._down[series] = 0.0
        self._risen[series] = self._fallen[series] = 0
        self._length[series] = part.length
        self._pending[series] = 0
        self._update_depth(series, part.level)
        first = self._step_interval(series, len(values) - part.length)
        return SlowdownStart(first, part.length, part.level, confidence)

    def close_slowdown(self, series: int) -> SlowdownEnd:
        """Close the slowdown of a series whose steps are back to normal."""
        values, begin = self._recent_ratios(series, int(self._fallen[series]), fallen=True)
        last = (
            self._step_interval(series, max(begin - 1, 0)) if len(values) else StepInterval(0, 0, 0)
        )
        self.open[series] = False
        self._down[series] = self._up[series] = 0.0
        self._fallen[series] = self._risen[series] = self._length[series] = 0
        return SlowdownEnd(last, float(self._depth[series]))

    def shared_slowdown(self, length: int) -> float:
        """Return the slowdown (log) that three quarters of the series share in their last steps.

        Args:
            length: number of last steps.

        Returns:
            At least 0; 0 if fewer than two series have a reference.
        """
        if self.known.sum() < 2:
            return 0.0
        middle = np.median(self.recent[self.known, -min(length, RECENT_STEPS) :], axis=1)
        return max(compute_lower_quartile(middle), 0.0)

    def typical_seconds(self) -> FloatArray:
        """Return the usual duration of each series' usual batch, [M]; 0 without a reference."""
        return np.where(self.known, np.exp(self.level), 0.0)

    def estimate_reference_error(self, series: int) -> Levels:
        """Return the noise and the errors of a series' reference, without segments."""
        return self._levels(series)

    def _record_ratios(self, at: IntArray, ratio: FloatArray, step_times: IntArray) -> None:
        self.recent[at, :-1] = self.recent[at, 1:]
        self.recent[at, -1] = ratio
        self._when[at, :-1] = self._when[at, 1:]
        self._when[at, -1] = step_times
        self.seen[at] += self.known[at]

    def _test_rise(self, at: IntArray, ratio: FloatArray, tested: BoolArray) -> None:
        at, ratio = at[tested], ratio[tested]
        total = advance_sums(self._up[at], ratio - self._allowance[at], self._threshold[at])
        self._up[at] = total
        self._risen[at] = np.where(total > 0, self._risen[at] + 1, 0)

    def _test_fall(self, at: IntArray, ratio: FloatArray, tested: BoolArray) -> None:
        at, ratio = at[tested], ratio[tested]
        if not len(at):
            return
        total = advance_sums(
            self._down[at], MERGE_RATIO * self._depth[at] - ratio, self._end_threshold[at]
        )
        self._down[at] = total
        self._fallen[at] = np.where(total > 0, self._fallen[at] + 1, 0)
        self._length[at] += 1
        for series in at[(total == 0) & (self._length[at] <= RECENT_STEPS)].tolist():
            self._update_depth(
                series, float(np.median(self.recent[series, -int(self._length[series]) :]))
            )

    def _has_faded(self, at: IntArray) -> BoolArray:
        """Return a mask of the open series that are no longer slow over all their latest steps.

        The test of the end misses a slight slowdown that fades to just below 1.10.
        """
        faded: BoolArray = (
            self.open[at]
            & (self._length[at] >= RECENT_STEPS)
            & (self._length[at] % _CHECK_EVERY == 0)
        )
        for index in np.flatnonzero(faded).tolist():
            faded[index] = np.median(self.recent[at[index]]) < math.log(MIN_RATIO)
        return faded

    def _update_depth(self, series: int, level: float) -> None:
        """Record the level of an open slowdown and derive the threshold of its end.

        Steps below half of the level (in log) count as evidence for the end.
        """
        self._depth[series] = max(level, math.log(MIN_RATIO))
        sigma = self.sigma[series]
        self._end_threshold[series] = (
            compute_thresholds(MERGE_RATIO * self._depth[series] / sigma, self._steps) * sigma
        )

    def _record_work(self, at: IntArray, logs: FloatArray, samples: FloatArray) -> None:
        self._logs[at, :-1] = self._logs[at, 1:]
        self._logs[at, -1] = logs
        self._sizes[at, :-1] = self._sizes[at, 1:]
        self._sizes[at, -1] = samples
        self._pending[at] += ~self.open[at]

    def _update_reference(self, at: IntArray) -> None:
        """Add steps to the reference once they are old enough.

        A recent step may belong to a slowdown that has just begun. All steps outside slowdowns are
        added. Adding only steps that look normal would leave out slightly slow ones, and the
        reference would become too fast.
        """
        at = at[self._pending[at] > np.minimum(_DELAY_STEPS, self.learned_steps[at] // 3)]
        if not len(at):
            return
        oldest = RECENT_STEPS - self._pending[at]
        self._pending[at] -= 1
        self._reference[at, :-1] = self._reference[at, 1:]
        self._reference[at, -1] = self._logs[at, oldest]
        self._samples[at, :-1] = self._samples[at, 1:]
        self._samples[at, -1] = self._sizes[at, oldest]
        self.learned_steps[at] += 1
        if self.cost.is_due(self.learned_steps):
            self.cost.fit(self._reference, self._samples)
            at = np.arange(self.count)
        else:
            at = at[
                (self.learned_steps[at] % _REFIT_EVERY == 0)
                | (self.learned_steps[at] == LEAST_REFERENCE_STEPS)
            ]
        at = at[self.known[at]]
        if len(at):
            self._refit(at)

    def _refit(self, at: IntArray) -> None:
        kept_count = np.minimum(self.learned_steps[at], REFERENCE_STEPS)
        width = int(kept_count.max())
        values = self._reference[at, -width:] - self.cost.log_costs(self._samples[at, -width:])
        steady = int(kept_count.min()) == width
        self.level[at] = np.median(values, axis=1) if steady else np.nanmedian(values, axis=1)
        moves = np.abs(np.diff(values, axis=1))
        noise = (
            1.4826
            / math.sqrt(2.0)
            * (np.median(moves, axis=1) if steady else np.nanmedian(moves, axis=1))
        )
        self.sigma[at] = np.maximum(noise, MIN_SCALE)
        # A reference of few steps has a large error, and a difference within that error is no
        # evidence of a slowdown.
        off = _MEDIAN_ERROR * self.sigma[at] / np.sqrt(kept_count)
        self._allowance[at] = _TARGET_SHIFT + _REFERENCE_ERRORS * off
        noise_of_sum = _PERSISTENT_NOISE_FACTOR * self.sigma[at]
        self._threshold[at] = (
            compute_thresholds((_TARGET_SHIFT + off) / noise_of_sum, self._steps) * noise_of_sum
        )

    def _levels(self, series: int) -> Levels:
        kept_count = int(min(self.learned_steps[series], REFERENCE_STEPS))
        values = (
            self._reference[series, -kept_count:]
            - self.cost.log_costs(self._samples[series, -kept_count:])
            - self.level[series]
        )
        sigma = estimate_noise_sigma(values)
        jitter = sigma * _MEDIAN_ERROR / math.sqrt(MIN_STEPS)
        scatter = compute_median_scatter(values)
        wander = math.sqrt(max(scatter**2 - jitter**2, 0.0))
        off = _MEDIAN_ERROR * sigma / math.sqrt(kept_count)
        return Levels((), sigma, jitter, math.hypot(wander, MIN_SCALE, off))

    def _recent_ratios(
        self, series: int, count: int, *, fallen: bool = False
    ) -> tuple[FloatArray, int]:
        """Return the latest ratios and the index where those since the last change begin.

        The index is moved to where it fits the levels best.

        Args:
            series: index of the series.
            count: number of steps since the change according to the test.
            fallen: whether the change is the end of a slowdown.
        """
        kept_count = int(min(self.seen[series], RECENT_STEPS))
        values = self.recent[series, RECENT_STEPS - kept_count :]
        begin = max(kept_count - count, 0)
        before = max(begin - 2 * MIN_STEPS, 0)
        if fallen or before < begin:
            begin = refine_bounds(values, [before, begin, kept_count])[1]
        return values, min(begin, max(kept_count - 1, 0))

    def _step_interval(self, series: int, index: int) -> StepInterval:
        """Return the step of the `index`-th of the latest ratios."""
        kept_count = int(min(self.seen[series], RECENT_STEPS))
        step, start_ns, end_ns = self._when[series, RECENT_STEPS - kept_count + index].tolist()
        return StepInterval(step, start_ns, end_ns)


def compute_median_scatter(values: FloatArray) -> float:
    """Return the robust standard deviation of ten-step medians about 0; 0 for fewer than three."""
    tens = len(values) // MIN_STEPS
    if tens < 3:
        return 0.0
    middle = np.median(values[-tens * MIN_STEPS :].reshape(tens, MIN_STEPS), axis=1)
    return 1.4826 * float(np.median(np.abs(middle)))
