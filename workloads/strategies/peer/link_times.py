"""What it takes a model to come from each of the others, smoothed, from transfers that are seen to
end; pure.
"""

from __future__ import annotations

import numpy as np

from laggard.workloads.strategies.peer.matching_policy import FloatArray

SMOOTHING = 0.3
"""Weight of a new measurement."""


class LinkTimes:
    """One rank's measurements; all models are of one size, so that seconds say what bytes per
    second would.

    Args:
        world_size: number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._row: FloatArray = np.full(world_size + 1, np.nan)

    def record_transfer(self, rank: int, seconds: float, *, was_queued: bool) -> None:
        """A model has come from a rank; unseen, it was there before anybody looked, and took no
        longer than this.
        """
        if not (was_queued and self._row[rank] <= seconds):
            self._smooth(rank, seconds)

    def record_gradient(self, seconds: float) -> None:
        """This rank has computed a gradient."""
        self._smooth(-1, seconds)

    @property
    def row(self) -> FloatArray:
        """Seconds by rank, then those of the gradient; NaN where nothing is known."""
        return self._row.copy()

    def _smooth(self, place: int, seconds: float) -> None:
        before = self._row[place]
        self._row[place] = seconds if np.isnan(before) else before + SMOOTHING * (seconds - before)
