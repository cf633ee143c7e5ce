"""Time that a model takes to arrive from each other rank, smoothed; pure.

It is measured from the transfers of the training itself.
"""

from __future__ import annotations

import numpy as np

from laggard.core.rules.matching_policy import FloatArray

SMOOTHING = 0.3
"""Weight of a new measurement in the exponential average."""


class LinkTimes:
    """Measurements of one rank.

    All models have the same size, so seconds rank links as well as bytes per second would.

    Args:
        world_size: number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._row: FloatArray = np.full(world_size + 1, np.nan)

    def record_transfer(self, rank: int, seconds: float, *, was_queued: bool) -> None:
        """Record that a model has arrived from a rank.

        Args:
            rank: sender of the model.
            seconds: time from sending to handling.
            was_queued: whether the model arrived before this rank listened. Then `seconds` is only
                an upper bound, and is used only if it is below the current value.
        """
        if not (was_queued and self._row[rank] <= seconds):
            self._smooth(rank, seconds)

    def record_gradient(self, seconds: float) -> None:
        """Record the duration of this rank's gradient computation."""
        self._smooth(-1, seconds)

    @property
    def row(self) -> FloatArray:
        """Seconds per model by rank, then those of the gradient; NaN without a measurement."""
        return self._row.copy()

    def _smooth(self, place: int, seconds: float) -> None:
        before = self._row[place]
        self._row[place] = seconds if np.isnan(before) else before + SMOOTHING * (seconds - before)
