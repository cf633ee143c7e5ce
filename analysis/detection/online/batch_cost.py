"""What a batch of another size costs beside the usual one, while the run goes on: affine, and by
one slope for all ranks.

Ranks train one model, so that what is fixed of a step and what grows with its samples is shared out
alike; slow ranks are slower in both.
"""

from __future__ import annotations

import numpy as np

from laggard.analysis.detection.reference import fit_line
from laggard.analysis.tables.columns import FloatArray, IntArray

_FIRST = 10


class BatchCost:
    """Relative cost g(n) = 1 + slope (n / usual - 1).

    Args:
        count: number of series that it is fitted to.
    """

    def __init__(self, count: int) -> None:
        self.slope = 0.0
        self.usual = 0.0
        self._count = count
        self._due = float(_FIRST)

    def is_due(self, learned_steps: IntArray) -> bool:
        """Whether twice as many steps are known of as at the last fit."""
        if float(learned_steps.sum()) < self._due * self._count:
            return False
        self._due *= 2.0
        return True

    def fit(self, logs: FloatArray, samples: FloatArray) -> None:
        """Fits it to logarithms of durations and their samples, [M, N] each; NaN where nothing is
        known.
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
        """Ln g of batches of so many samples."""
        if self.slope <= 0.0 or self.usual <= 0.0:
            return np.zeros(np.shape(samples))
        logs: FloatArray = np.log1p(self.slope * (samples / self.usual - 1.0))
        return logs
