"""Live estimate of the machine's drift: the slowdown that three quarters of the ranks share."""

from __future__ import annotations

import numpy as np

from laggard.analysis.detection.intervals import MEDIAN_WINDOW, MIN_STEPS
from laggard.analysis.tables.columns import FloatArray, IntArray

# Same window as in `estimate_shared_drift`.
_SMOOTHED_STEPS = 2 * MEDIAN_WINDOW + 1
_KEPT_STEPS = 64


class MachineDrift:
    """Latest ratios of every rank's compute to its own usual duration, before any correction.

    Args:
        world: number of ranks.
    """

    def __init__(self, world: int) -> None:
        self._ratios: FloatArray = np.zeros((world, _KEPT_STEPS))
        self._counts: IntArray = np.zeros(world, dtype=np.int64)

    def update(self, ranks: IntArray, ratios: FloatArray) -> float:
        """Add the latest log ratios of some ranks, [m], and return their common slowdown (log)."""
        self._ratios[ranks, :-1] = self._ratios[ranks, 1:]
        self._ratios[ranks, -1] = ratios
        self._counts[ranks] += 1
        return self._common_level(-_SMOOTHED_STEPS, None)

    def change_since(self, steps: int) -> float:
        """Return the change (log) of the common slowdown in the last `steps` steps, at least 0."""
        steps = min(steps, _KEPT_STEPS - MIN_STEPS)
        return max(self._common_level(-steps, None) - self._common_level(None, -steps), 0.0)

    def _common_level(self, begin: int | None, end: int | None) -> float:
        """Return the lower quartile over the ranks of their medians; 0 for a single rank."""
        if len(self._ratios) < 2 or self._counts.min() < MIN_STEPS:
            return 0.0
        kept_count = int(min(self._counts.min(), _KEPT_STEPS))
        part = self._ratios[:, _KEPT_STEPS - kept_count :][:, begin:end]
        if not part.shape[1]:
            return 0.0
        return compute_lower_quartile(np.median(part, axis=1))


def compute_lower_quartile(values: FloatArray) -> float:
    """Return the lower quartile of the values (numpy's method `lower`)."""
    return float(np.sort(values)[(len(values) - 1) // 4])
