"""What slows three quarters of the ranks at once: the machine under them, as far as it is known
while the run goes on.
"""

from __future__ import annotations

import numpy as np

from laggard.analysis.detection.intervals import MEDIAN_WINDOW, MIN_STEPS
from laggard.analysis.tables.columns import FloatArray, IntArray

_SMOOTHED_STEPS = 2 * MEDIAN_WINDOW + 1
_KEPT_STEPS = 64


class MachineDrift:
    """Keeps every rank's latest ratios of compute to its own usual, with all that slows it.

    Args:
        world: number of ranks.
    """

    def __init__(self, world: int) -> None:
        self._ratios: FloatArray = np.zeros((world, _KEPT_STEPS))
        self._counts: IntArray = np.zeros(world, dtype=np.int64)

    def update(self, ranks: IntArray, ratios: FloatArray) -> float:
        """Takes the latest log ratios of some ranks, [m]; returns what all have in common (log)."""
        self._ratios[ranks, :-1] = self._ratios[ranks, 1:]
        self._ratios[ranks, -1] = ratios
        self._counts[ranks] += 1
        return self._common_level(-_SMOOTHED_STEPS, None)

    def change_since(self, steps: int) -> float:
        """What all have in common in their last `steps` steps, beyond what they had before (log), 0
        at least.
        """
        steps = min(steps, _KEPT_STEPS - MIN_STEPS)
        return max(self._common_level(-steps, None) - self._common_level(None, -steps), 0.0)

    def _common_level(self, begin: int | None, end: int | None) -> float:
        """Lower quartile over the ranks of their medians; 0 for a single rank."""
        if len(self._ratios) < 2 or self._counts.min() < MIN_STEPS:
            return 0.0
        kept_count = int(min(self._counts.min(), _KEPT_STEPS))
        part = self._ratios[:, _KEPT_STEPS - kept_count :][:, begin:end]
        if not part.shape[1]:
            return 0.0
        return compute_lower_quartile(np.median(part, axis=1))


def compute_lower_quartile(values: FloatArray) -> float:
    """The value that a quarter of them are below at most (numpy's `lower`)."""
    return float(np.sort(values)[(len(values) - 1) // 4])
