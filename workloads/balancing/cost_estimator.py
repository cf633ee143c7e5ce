"""Estimator of the current cost of a rank's step, from its last steps; pure.

A step of n samples takes a + b n seconds. The ratio a / b depends on model and machine and rarely
changes. The level of both changes whenever another program uses part of the machine. A change of
speed therefore discards the steps before it, but keeps the learned ratio.

If such changes are reversed again and again, each one is over before the shares have followed.
Then the estimate is the average cost.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import combinations
from statistics import fmean, median, pstdev

from laggard.workloads.balancing.allocation import AffineCost

OUTLIER_RATIO = 1.5
"""A step is an outlier if it takes this many times its usual duration, or that fraction of it.
Steady hosts scatter less."""

CONFIRMING_STEPS = 2
"""Number of consecutive outliers to the same side that confirm a change of speed."""

MIN_SLOPE_STEPS = 3
"""Fewest steps at either end of the range of sizes for the estimate of a slope."""

SIMILAR_SIZE_RATIO = 1.15
"""Sizes with a smaller ratio than this are similar: they do not contribute to the slope, and they
count together for the level."""

MAX_FIXED_BATCHES = 1000.0
"""Upper limit of the fixed part, as a multiple of the samples' cost in a batch. It keeps the cost
of a sample above zero."""

UNSTEADY_WINDOWS = 4
"""Number of windows after reversed changes during which changes count as transient."""

TRANSIENT_STEPS = 4
"""Typical length of a slow moment in steps, for the standard error of unsteady costs."""

_MIN_STEP_S = 1e-9
_DEVIATION_FACTOR = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of normal noise."""


class CostEstimator:
    """Estimator of one rank's current cost of a step.

    Args:
        window: number of last steps that the estimate uses.
        ratio: a / b in samples, until steps of different sizes show it; 0 (the whole cost is
            proportional to samples) if unknown.
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
        """Add a finished step.

        The first step of each size is ignored, since libraries prepare themselves for its shapes.

        Args:
            samples: number of samples computed, at least one.
            seconds: time of the rank's own work, without waiting.
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
        """Discard the steps before a change of speed, unless changes are transient.

        Args:
            side: 1 for slower, -1 for faster.
            first: index of the first step at the new speed.
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
        """Return whether the last step is an outlier among steps of its size.

        It may be the first step at a new speed, which the next steps will show.
        """
        if not self._steps or self._unsteady_steps:
            return False
        *before, (_, last_s) = self._similar_steps(self._steps[-1][0])
        return (
            len(before) >= CONFIRMING_STEPS
            and _classify_duration(last_s, median(seconds for _, seconds in before)) != 0
        )

    def estimate(self) -> AffineCost | None:
        """Return the current cost of steps; None before there were any.

        The line goes through the usual duration of the current size.
        """
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
        """Relative standard error of the current size's usual duration.

        It is derived from the median absolute deviation, assuming normal noise.
        """
        similar = (
            [seconds for _, seconds in self._similar_steps(self._steps[-1][0])]
            if self._steps
            else []
        )
        if not similar:
            return 0.0
        # Slow moments last for several steps, so the number of independent samples is smaller.
        if self._unsteady_steps:
            return pstdev(similar) / fmean(similar) * math.sqrt(TRANSIENT_STEPS / len(similar))
        usual_s = median(similar)
        # The standard error of a median is sqrt(pi / 2) times that of a mean, for normal noise.
        deviation_s = median(abs(seconds - usual_s) for seconds in similar)
        return _DEVIATION_FACTOR * deviation_s / usual_s * math.sqrt(math.pi / 2 / len(similar))

    def _similar_steps(self, samples: int) -> list[tuple[int, float]]:
        """Return the steps of similar size: index, and duration scaled to `samples` samples."""
        return [
            (place, seconds * (self._ratio + samples) / (self._ratio + size))
            for place, (size, seconds) in enumerate(self._steps)
            if max(size, samples) < SIMILAR_SIZE_RATIO * min(size, samples)
        ]

    def _slope(self) -> float | None:
        """Return the seconds per sample; None if there are too few steps of different sizes.

        The Theil-Sen estimator is the median of the slopes between pairs of steps with different
        sizes.
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
    """Return 1 for a step that is unusually slow, -1 for unusually fast, and 0 otherwise."""
    return (seconds > usual_s * OUTLIER_RATIO) - (seconds < usual_s / OUTLIER_RATIO)
