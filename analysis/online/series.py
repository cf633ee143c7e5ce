"""Many series of step times, each held against its own running reference by Page's test: who has
become slow, and who is as usual again.

A series is a rank's compute, its reading, or the transfers. All is kept in arrays of fixed size, so
that a step costs the same however long the run is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laggard.analysis.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.intervals import (
    ALIKE,
    LEAST_RATIO,
    LEAST_SCALE,
    LEAST_STEPS,
    Levels,
    is_steadily_raised,
    measure_segment,
    noise_sigma,
    refine_bounds,
)
from laggard.analysis.online.batch_cost import BatchCost
from laggard.analysis.online.cusum import advance, reached, thresholds
from laggard.analysis.online.drift import lower_quartile

REFERENCE_STEPS = 100
"""Calm steps that a reference is the median of."""
LEAST_REFERENCE_STEPS = LEAST_STEPS
RECENT_STEPS = 64
"""Steps that an onset, and how slow an interval is, are looked for in."""
_REFIT_EVERY = 5
_LOOK_EVERY = 16
_DELAY_STEPS = 20
_MEDIAN_ERROR = math.sqrt(math.pi / 2.0)
_LOOKED_FOR = math.log(LEAST_RATIO) / 2.0
_REFERENCE_ERRORS = 2.0
"""Standard errors that a reference may be off by: it stays off for long, and by more in one of many
ranks."""
_LASTING = 1.4
"""Noise of a sum over noise of a step: drift that is taken out and references that are off err
alike in many steps on end."""
_SURE = 0.95
"""Probability, at least, with which what is told of is slow by the definition."""


@dataclass(frozen=True)
class Moment:
    """A step and when it began and ended, in nanoseconds."""

    step: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Rise:
    """A series that has become slow.

    Attributes:
        first: first slow step.
        length: steps since then, up to `RECENT_STEPS`.
        level: how slow (median log ratio to its usual).
        confidence: probability that the true ratio is 1.10 or more.
    """

    first: Moment
    length: int
    level: float
    confidence: float


@dataclass(frozen=True)
class Fall:
    """A series that is as usual again: its last slow step, and how slow it was (median log ratio,
    latest steps).
    """

    last: Moment
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
        self.learnt: IntArray = np.zeros(count, dtype=np.int64)
        self.level: FloatArray = np.zeros(count)
        self.sigma: FloatArray = np.full(count, LEAST_SCALE)
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
        self._allowance: FloatArray = np.full(count, _LOOKED_FOR)
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
        return self.learnt >= LEAST_REFERENCE_STEPS

    @property
    def rising(self) -> BoolArray:
        """Which are slow, or look like it, [M]."""
        risen: BoolArray = self.open | (self._up >= 0.5 * self._threshold)
        return risen

    @property
    def starting(self) -> IntArray:
        """Steps since each series began to look slow, [M]; 0 of one that does not."""
        return np.where(self.open, self._length, self._risen)

    def ratios(self, at: IntArray, seconds: FloatArray, samples: FloatArray) -> FloatArray:
        """Log ratio of durations to the own reference, [m]; 0 where there is no duration or no
        reference.
        """
        there = (seconds > 0) & self.known[at]
        logs = (
            np.log(np.where(seconds > 0, seconds, 1.0)) - self.cost.logs(samples) - self.level[at]
        )
        return np.where(there, logs, 0.0)

    def enter(
        self,
        at: IntArray,
        seconds: FloatArray,
        samples: FloatArray,
        when: IntArray,
        drift: float = 0.0,
        warm_up: BoolArray | None = None,
    ) -> IntArray:
        """Takes one step of some series.

        Args:
            at: which series, [m], none twice.
            seconds: what it took, [m]; 0 where there was nothing.
            samples: of its batch, [m].
            when: step, start and end, [m, 3].
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
            at, seconds, samples, when = (
                at[counted],
                seconds[counted],
                samples[counted],
                when[counted],
            )
        if not len(at):
            return at
        ratio = self.ratios(at, seconds, samples) - drift
        self._remember(at, ratio, when)
        tested = self.known[at]
        self._test_rise(at, ratio, tested & ~self.open[at])
        self._test_fall(at, ratio, self.open[at])
        self._remember_work(at, np.log(seconds) - drift, samples)
        self._learn(at[~self.open[at]])
        ended = reached(self._down[at], self._end_threshold[at]) | self._has_faded(at)
        done = np.where(self.open[at], ended, reached(self._up[at], self._threshold[at]))
        return at[done & tested]

    def rise(self, series: int, shared: float = 0.0) -> Rise | None:
        """Opens a series whose sum has reached its threshold, if the steps since it began to rise
        are slow by the definition.

        Args:
            series: which.
            shared: what slowed everybody at once meanwhile (log).
        """
        values, begin = self._since(series, int(self._risen[series]))
        levels = self._levels(series)
        part = measure_segment(values - shared, begin, len(values) - 1)
        confidence = levels.confidence(part.level, part.length)
        if confidence < _SURE or not is_steadily_raised(part, levels, 0.0):
            return None
        self.open[series] = True
        self._up[series] = self._down[series] = 0.0
        self._risen[series] = self._fallen[series] = 0
        self._length[series] = part.length
        self._pending[series] = 0
        self._deepen(series, part.level)
        first = self._moment(series, len(values) - part.length)
        return Rise(first, part.length, part.level, confidence)

    def fall(self, series: int) -> Fall:
        """Closes a series whose steps have been as usual again."""
        values, begin = self._since(series, int(self._fallen[series]), fallen=True)
        last = self._moment(series, max(begin - 1, 0)) if len(values) else Moment(0, 0, 0)
        self.open[series] = False
        self._down[series] = self._up[series] = 0.0
        self._fallen[series] = self._risen[series] = self._length[series] = 0
        return Fall(last, float(self._depth[series]))

    def in_common(self, length: int) -> float:
        """What three quarters of the series or more were slower than usual by in their last
        `length` steps (log), 0 at least.
        """
        if self.known.sum() < 2:
            return 0.0
        middle = np.median(self.recent[self.known, -min(length, RECENT_STEPS) :], axis=1)
        return max(lower_quartile(middle), 0.0)

    def usual_seconds(self) -> FloatArray:
        """What each series' usual batch usually takes, [M]; 0 where nothing is known."""
        return np.where(self.known, np.exp(self.level), 0.0)

    def reference_error(self, series: int) -> Levels:
        """How far the median of a series' steps strays."""
        return self._levels(series)

    def _remember(self, at: IntArray, ratio: FloatArray, when: IntArray) -> None:
        self.recent[at, :-1] = self.recent[at, 1:]
        self.recent[at, -1] = ratio
        self._when[at, :-1] = self._when[at, 1:]
        self._when[at, -1] = when
        self.seen[at] += self.known[at]

    def _test_rise(self, at: IntArray, ratio: FloatArray, tested: BoolArray) -> None:
        at, ratio = at[tested], ratio[tested]
        total = advance(self._up[at], ratio - self._allowance[at], self._threshold[at])
        self._up[at] = total
        self._risen[at] = np.where(total > 0, self._risen[at] + 1, 0)

    def _test_fall(self, at: IntArray, ratio: FloatArray, tested: BoolArray) -> None:
        at, ratio = at[tested], ratio[tested]
        if not len(at):
            return
        total = advance(self._down[at], ALIKE * self._depth[at] - ratio, self._end_threshold[at])
        self._down[at] = total
        self._fallen[at] = np.where(total > 0, self._fallen[at] + 1, 0)
        self._length[at] += 1
        for series in at[(total == 0) & (self._length[at] <= RECENT_STEPS)].tolist():
            self._deepen(
                series, float(np.median(self.recent[series, -int(self._length[series]) :]))
            )

    def _has_faded(self, at: IntArray) -> BoolArray:
        """Which open series are, over all their latest steps, not slow any more by the
        definition.
        """
        faded: BoolArray = (
            self.open[at]
            & (self._length[at] >= RECENT_STEPS)
            & (self._length[at] % _LOOK_EVERY == 0)
        )
        for index in np.flatnonzero(faded).tolist():
            faded[index] = np.median(self.recent[at[index]]) < math.log(LEAST_RATIO)
        return faded

    def _deepen(self, series: int, level: float) -> None:
        """Notes how slow an open series is; it is over once its steps are nearer to the usual."""
        self._depth[series] = max(level, math.log(LEAST_RATIO))
        sigma = self.sigma[series]
        self._end_threshold[series] = (
            thresholds(ALIKE * self._depth[series] / sigma, self._steps) * sigma
        )

    def _remember_work(self, at: IntArray, logs: FloatArray, samples: FloatArray) -> None:
        self._logs[at, :-1] = self._logs[at, 1:]
        self._logs[at, -1] = logs
        self._sizes[at, :-1] = self._sizes[at, 1:]
        self._sizes[at, -1] = samples
        self._pending[at] += ~self.open[at]

    def _learn(self, at: IntArray) -> None:
        """Takes into the reference what has been there for a while: of what has just begun nobody
        knows what it is.

        It takes all that is not slow, and not what looks calm: who leaves out what is a little
        slower ends with a reference that is too quick.
        """
        at = at[self._pending[at] > np.minimum(_DELAY_STEPS, self.learnt[at] // 3)]
        if not len(at):
            return
        oldest = RECENT_STEPS - self._pending[at]
        self._pending[at] -= 1
        self._reference[at, :-1] = self._reference[at, 1:]
        self._reference[at, -1] = self._logs[at, oldest]
        self._samples[at, :-1] = self._samples[at, 1:]
        self._samples[at, -1] = self._sizes[at, oldest]
        self.learnt[at] += 1
        if self.cost.is_due(self.learnt):
            self.cost.fit(self._reference, self._samples)
            at = np.arange(self.count)
        else:
            at = at[
                (self.learnt[at] % _REFIT_EVERY == 0) | (self.learnt[at] == LEAST_REFERENCE_STEPS)
            ]
        at = at[self.known[at]]
        if len(at):
            self._refit(at)

    def _refit(self, at: IntArray) -> None:
        held = np.minimum(self.learnt[at], REFERENCE_STEPS)
        width = int(held.max())
        values = self._reference[at, -width:] - self.cost.logs(self._samples[at, -width:])
        steady = int(held.min()) == width
        self.level[at] = np.median(values, axis=1) if steady else np.nanmedian(values, axis=1)
        moves = np.abs(np.diff(values, axis=1))
        noise = (
            1.4826
            / math.sqrt(2.0)
            * (np.median(moves, axis=1) if steady else np.nanmedian(moves, axis=1))
        )
        self.sigma[at] = np.maximum(noise, LEAST_SCALE)
        # A reference of few steps is off by itself: what it may be off by is no evidence.
        off = _MEDIAN_ERROR * self.sigma[at] / np.sqrt(held)
        self._allowance[at] = _LOOKED_FOR + _REFERENCE_ERRORS * off
        lasting = _LASTING * self.sigma[at]
        self._threshold[at] = thresholds((_LOOKED_FOR + off) / lasting, self._steps) * lasting

    def _levels(self, series: int) -> Levels:
        held = int(min(self.learnt[series], REFERENCE_STEPS))
        values = (
            self._reference[series, -held:]
            - self.cost.logs(self._samples[series, -held:])
            - self.level[series]
        )
        sigma = noise_sigma(values)
        jitter = sigma * _MEDIAN_ERROR / math.sqrt(LEAST_STEPS)
        scatter = scatter_of_medians(values)
        wander = math.sqrt(max(scatter**2 - jitter**2, 0.0))
        off = _MEDIAN_ERROR * sigma / math.sqrt(held)
        return Levels((), sigma, jitter, math.hypot(wander, LEAST_SCALE, off))

    def _since(self, series: int, count: int, *, fallen: bool = False) -> tuple[FloatArray, int]:
        """The latest ratios, and the index at which those since the last change begin, moved to
        where it fits best.
        """
        held = int(min(self.seen[series], RECENT_STEPS))
        values = self.recent[series, RECENT_STEPS - held :]
        begin = max(held - count, 0)
        before = max(begin - 2 * LEAST_STEPS, 0)
        if fallen or before < begin:
            begin = refine_bounds(values, [before, begin, held])[1]
        return values, min(begin, max(held - 1, 0))

    def _moment(self, series: int, index: int) -> Moment:
        """Of the latest ratios' `index`-th."""
        held = int(min(self.seen[series], RECENT_STEPS))
        step, start_ns, end_ns = self._when[series, RECENT_STEPS - held + index].tolist()
        return Moment(step, start_ns, end_ns)


def scatter_of_medians(values: FloatArray) -> float:
    """Robust standard deviation of ten-step medians about 0; 0 of fewer than three."""
    tens = len(values) // LEAST_STEPS
    if tens < 3:
        return 0.0
    middle = np.median(values[-tens * LEAST_STEPS :].reshape(tens, LEAST_STEPS), axis=1)
    return 1.4826 * float(np.median(np.abs(middle)))
