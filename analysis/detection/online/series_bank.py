"""Many series of step times, each held against its own running reference by Page's test: who has
become slow, and who is as usual again.

A series is a rank's compute, its reading, or the transfers. All is kept in arrays of fixed size, so
that a step costs the same however long the run is.
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
"""Calm steps that a reference is the median of."""
LEAST_REFERENCE_STEPS = MIN_STEPS
RECENT_STEPS = 64
"""Steps that an onset, and how slow an interval is, are looked for in."""
_REFIT_EVERY = 5
_CHECK_EVERY = 16
_DELAY_STEPS = 20
_MEDIAN_ERROR = math.sqrt(math.pi / 2.0)
_TARGET_SHIFT = math.log(MIN_RATIO) / 2.0
_REFERENCE_ERRORS = 2.0
"""Standard errors that a reference may be off by: it stays off for long, and by more in one of many
ranks."""
_PERSISTENT_NOISE_FACTOR = 1.4
"""Noise of a sum over noise of a step: drift that is taken out and references that are off err
alike in many steps on end."""
_MIN_CONFIDENCE = 0.95
"""Probability, at least, with which what is told of is slow by the definition."""


@dataclass(frozen=True)
class StepInterval:
    """A step and when it began and ended, in nanoseconds."""

    step: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class SlowdownStart:
    """A series that has become slow.

    Attributes:
        first: first slow step.
        length: steps since then, up to `RECENT_STEPS`.
        level: how slow (median log ratio to its usual).
        confidence: probability that the true ratio is 1.10 or more.
    """

    first: StepInterval
    length: int
    level: float
    confidence: float


@dataclass(frozen=True)
class SlowdownEnd:
    """A series that is as usual again: its last slow step, and how slow it was (median log ratio,
    latest steps).
    """

    last: StepInterval
    level: float


class SeriesBank:
    """The series of one family.

    Args:
        count: how many, M.
        steps: how many pass, on average, between two false alarms of one series.
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
        """Calm steps that a reference is the median of, at most."""
        return REFERENCE_STEPS

    @property
    def known(self) -> BoolArray:
        """Which series have a reference, [M]."""
        return self.learned_steps >= LEAST_REFERENCE_STEPS

    @property
    def is_rising(self) -> BoolArray:
        """Which are slow, or look like it, [M]."""
        risen: BoolArray = self.open | (self._up >= 0.5 * self._threshold)
        return risen

    @property
    def steps_since_rise(self) -> IntArray:
        """Steps since each series began to look slow, [M]; 0 of one that does not."""
        return np.where(self.open, self._length, self._risen)

    def log_ratios(self, at: IntArray, seconds: FloatArray, samples: FloatArray) -> FloatArray:
        """Log ratio of durations to the own reference, [m]; 0 where there is no duration or no
        reference.
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
        """Takes one step of some series.

        Args:
            at: which series, [m], none twice.
            seconds: what it took, [m]; 0 where there was nothing.
            samples: of its batch, [m].
            step_times: step, start and end, [m, 3].
            drift: what the machine slows everybody by (log); taken out.
            warm_up: which are not to be looked at, [m].

        Returns:
            Series whose sums have come to an end: of those that are open, they may be over; else,
            they may be slow.
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
        """Opens a series whose sum has reached its threshold, if the steps since it began to rise
        are slow by the definition.

        Args:
            series: which.
            shared: what slowed everybody at once meanwhile (log).
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
        """Closes a series whose steps have been as usual again."""
        values, begin = self._recent_ratios(series, int(self._fallen[series]), fallen=True)
        last = (
            self._step_interval(series, max(begin - 1, 0)) if len(values) else StepInterval(0, 0, 0)
        )
        self.open[series] = False
        self._down[series] = self._up[series] = 0.0
        self._fallen[series] = self._risen[series] = self._length[series] = 0
        return SlowdownEnd(last, float(self._depth[series]))

    def shared_slowdown(self, length: int) -> float:
        """What three quarters of the series or more were slower than usual by in their last
        `length` steps (log), 0 at least.
        """
        if self.known.sum() < 2:
            return 0.0
        middle = np.median(self.recent[self.known, -min(length, RECENT_STEPS) :], axis=1)
        return max(compute_lower_quartile(middle), 0.0)

    def typical_seconds(self) -> FloatArray:
        """What each series' usual batch usually takes, [M]; 0 where nothing is known."""
        return np.where(self.known, np.exp(self.level), 0.0)

    def estimate_reference_error(self, series: int) -> Levels:
        """How far the median of a series' steps strays."""
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
        """Which open series are, over all their latest steps, not slow any more by the
        definition.
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
        """Notes how slow an open series is; it is over once its steps are nearer to the usual."""
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
        """Takes into the reference what has been there for a while: of what has just begun nobody
        knows what it is.

        It takes all that is not slow, and not what looks calm: who leaves out what is a little
        slower ends with a reference that is too quick.
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
        # A reference of few steps is off by itself: what it may be off by is no evidence.
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
        """The latest ratios, and the index at which those since the last change begin, moved to
        where it fits best.
        """
        kept_count = int(min(self.seen[series], RECENT_STEPS))
        values = self.recent[series, RECENT_STEPS - kept_count :]
        begin = max(kept_count - count, 0)
        before = max(begin - 2 * MIN_STEPS, 0)
        if fallen or before < begin:
            begin = refine_bounds(values, [before, begin, kept_count])[1]
        return values, min(begin, max(kept_count - 1, 0))

    def _step_interval(self, series: int, index: int) -> StepInterval:
        """Of the latest ratios' `index`-th."""
        kept_count = int(min(self.seen[series], RECENT_STEPS))
        step, start_ns, end_ns = self._when[series, RECENT_STEPS - kept_count + index].tolist()
        return StepInterval(step, start_ns, end_ns)


def compute_median_scatter(values: FloatArray) -> float:
    """Robust standard deviation of ten-step medians about 0; 0 of fewer than three."""
    tens = len(values) // MIN_STEPS
    if tens < 3:
        return 0.0
    middle = np.median(values[-tens * MIN_STEPS :].reshape(tens, MIN_STEPS), axis=1)
    return 1.4826 * float(np.median(np.abs(middle)))
