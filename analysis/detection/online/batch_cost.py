"""Cost of a batch relative to the usual batch size, fitted while the run goes on.

The cost is affine, with one slope for all ranks. Ranks train the same model, so the fixed and the
sample-dependent part of a step have the same proportion everywhere; a slow rank is slower in both.
"""

from __future__ import annotations

import numpy as np

from laggard.analysis.detection.reference import fit_line
from laggard.analysis.tables.columns import FloatArray, IntArray

# Steps per series before the first fit; each further fit waits for twice as many.
_FIRST = 10


class BatchCost:
    """Relative cost g(n) = 1 + slope (n / usual - 1) of a batch of n samples.

    Args:
        count: number of series that it is fitted to.
    """

    def __init__(self, count: int) -> None:
        self.slope = 0.0
        self.usual = 0.0
        self._count = count
        self._due = float(_FIRST)

    def is_due(self, learned_steps: IntArray) -> bool:
        """Return whether twice as many steps are known as at the last fit.

        If so, the next fit becomes due at twice that number.
        """
        if float(learned_steps.sum()) < self._due * self._count:
            return False
        self._due *= 2.0
        return True

    def fit(self, logs: FloatArray, samples: FloatArray) -> None:
        """Fit the cost to logarithms of durations and their samples, [M, N] each.

        Durations that are not known are NaN. The slope is the lower median of the slopes of the
        series that had more than one batch size.
        """
        known = ~np.isnan(logs)
        sizes = samples[known]
        if not len(sizes):
            return
        self.usual = float(np.median(sizes))
        if np.ptp(sizes) == 0 or self.usual <= 0:
            return
        slopes = []
        for row, own, is_known in zip(logs, samples, known, strict=True):
            if is_known.any() and np.ptp(own[is_known]) > 0:
                fixed, each = fit_line(own[is_known].astype(np.int64), np.exp(row[is_known]))
                slopes.append(each * self.usual / max(fixed + each * self.usual, 1e-12))
        if slopes:
            self.slope = sorted(slopes)[(len(slopes) - 1) // 2]

    def log_costs(self, samples: FloatArray) -> FloatArray:
        """Return ln g of batches of the given numbers of samples; 0 before a slope is known."""
        if self.slope <= 0.0 or self.usual <= 0.0:
            return np.zeros(np.shape(samples))
        logs: FloatArray = np.log1p(self.slope * (samples / self.usual - 1.0))
        return logs
