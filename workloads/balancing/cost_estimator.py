"""Estimator of the present cost of a rank's step, from its last steps; pure.

A step of n samples takes a + b n seconds. How the two relate is a matter of model and machine and
changes seldom; how large they are changes whenever somebody takes part of the machine. So a change
of speed drops what was seen before it, but keeps the ratio a / b that was learned. Where such
changes are undone again and again, by the time that shares have followed one it is over. Then what
counts is what steps cost on the average.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import combinations
from statistics import fmean, median, pstdev

from laggard.workloads.balancing.allocation import AffineCost

OUTLIER_RATIO = 1.5
"""A step that takes so many times its usual, or that part of it, departs: more than steady hosts
scatter by."""

CONFIRMING_STEPS = 2
"""So many departing steps one after another, to the same side, are a change of speed."""

MIN_SLOPE_STEPS = 3
"""Steps that a slope rests on at either end."""

SIMILAR_SIZE_RATIO = 1.15
"""Sizes closer to each other than this are alike: they say nothing of the slope, and together of
the level."""

MAX_FIXED_BATCHES = 1000.0
"""The fixed part is worth the samples of so many batches at most: a sample always costs
something."""

UNSTEADY_WINDOWS = 4
"""For so many windows after changes that were undone, changes are taken for a moment's."""

TRANSIENT_STEPS = 4

_MIN_STEP_S = 1e-9
_DEVIATION_FACTOR = 1.4826
"""Standard deviations in a median deviation."""


class CostEstimator:
    """One rank's cost of a step, as it is now.

    Args:
        window: last steps that it is judged by.
        ratio: a / b in samples, until steps of different sizes have told; 0 (all cost is of
            samples) where nothing is known.
    """

    def __init__(self, window: int, ratio: float = 0.0) -> None:
        self._steps: deque[tuple[int, float]] = deque(maxlen=window)
        self._ratio = ratio
        self._warmed_sizes: set[int] = set()
        (
            self._window,
            self._last_side,
            self._since_change,
            self._undone_changes,
            self._unsteady_steps,
        ) = (
            window,
            0,
            0,
            0,
            0,
        )

    def observe(self, samples: int, seconds: float) -> None:
        """A step is done; the first one of a size tells nothing, since libraries prepare themselves
        for its shapes in it.

        Args:
            samples: that it computed, one at least.
            seconds: of its own work, without waiting.
        """
        if samples not in self._warmed_sizes:
            self._warmed_sizes.add(samples)
            return
        self._steps.append((samples, max(seconds, _MIN_STEP_S)))
        self._since_change, self._unsteady_steps = (
            self._since_change + 1,
            max(self._unsteady_steps - 1, 0),
        )
        similar = self._similar_steps(samples)
        if len(similar) < 2 * CONFIRMING_STEPS:
            return
        usual_s = median(seconds for _, seconds in similar[:-CONFIRMING_STEPS])
        sides = {_classify_duration(seconds, usual_s) for _, seconds in similar[-CONFIRMING_STEPS:]}
        if sides in ({1}, {-1}):
            self._change(sides.pop(), similar[-CONFIRMING_STEPS][0])

    def _change(self, side: int, first: int) -> None:
        """The speed has changed: what was seen before the first step with the new one is dropped,
        unless such changes come and go.
        """
        undone = side == -self._last_side and self._since_change <= self._window
        self._undone_changes = self._undone_changes + 1 if undone else 0
        if self._undone_changes >= CONFIRMING_STEPS:
            self._unsteady_steps = UNSTEADY_WINDOWS * self._window
        self._last_side, self._since_change = side, 0
        if not self._unsteady_steps:
            for _ in range(first):
                self._steps.popleft()

    @property
    def is_outlier(self) -> bool:
        """Whether the last step departs from the usual of its size: perhaps a change of speed,
        which the next will tell.
        """
        if not self._steps or self._unsteady_steps:
            return False
        *before, (_, last_s) = self._similar_steps(self._steps[-1][0])
        return (
            len(before) >= CONFIRMING_STEPS
            and _classify_duration(last_s, median(seconds for _, seconds in before)) != 0
        )

    def estimate(self) -> AffineCost | None:
        """What steps cost, through the usual of the present size; None before there was any."""
        if not self._steps:
            return None
        size = self._steps[-1][0]
        usual_s = median(seconds for _, seconds in self._similar_steps(size))
        if self._unsteady_steps:
            usual_s = fmean(
                seconds * (self._ratio + size) / (self._ratio + each)
                for each, seconds in self._steps
            )
        slope = self._slope()
        if slope is not None:
            self._ratio = (
                usual_s / min(max(slope, usual_s / (size * MAX_FIXED_BATCHES)), usual_s / size)
                - size
            )
        sample_s = usual_s / (self._ratio + size)
        return AffineCost(max(usual_s - sample_s * size, 0.0), sample_s)

    @property
    def error(self) -> float:
        """Standard error of the usual of the present size, as a part of it; from the median
        deviation, of what is taken for normal noise.
        """
        similar = (
            [seconds for _, seconds in self._similar_steps(self._steps[-1][0])]
            if self._steps
            else []
        )
        if not similar:
            return 0.0
        if (
            self._unsteady_steps
        ):  # slow moments last for some steps: so many steps are not as many chances
            return pstdev(similar) / fmean(similar) * math.sqrt(TRANSIENT_STEPS / len(similar))
        usual_s = median(similar)
        deviation_s = median(abs(seconds - usual_s) for seconds in similar)
        return _DEVIATION_FACTOR * deviation_s / usual_s * math.sqrt(math.pi / 2 / len(similar))

    def _similar_steps(self, samples: int) -> list[tuple[int, float]]:
        """Place of, and seconds that this size would have taken in, the steps of about this
        size.
        """
        return [
            (place, seconds * (self._ratio + samples) / (self._ratio + size))
            for place, (size, seconds) in enumerate(self._steps)
            if max(size, samples) < SIMILAR_SIZE_RATIO * min(size, samples)
        ]

    def _slope(self) -> float | None:
        """Seconds per sample, by Theil and Sen: the median over pairs of steps of different sizes;
        None where there are too few.
        """
        sizes = sorted(size for size, _ in self._steps)
        if (
            len(sizes) < 2 * MIN_SLOPE_STEPS
            or sizes[-MIN_SLOPE_STEPS] < SIMILAR_SIZE_RATIO * sizes[MIN_SLOPE_STEPS - 1]
        ):
            return None
        return median(
            (seconds - other_s) / (size - other)
            for (other, other_s), (size, seconds) in combinations(self._steps, 2)
            if max(size, other) >= SIMILAR_SIZE_RATIO * min(size, other)
        )


def _classify_duration(seconds: float, usual_s: float) -> int:
    return (seconds > usual_s * OUTLIER_RATIO) - (seconds < usual_s / OUTLIER_RATIO)
