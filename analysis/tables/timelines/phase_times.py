"""Local work by step, rank and phase, and its place between the barriers.

A place is the number of barriers of the same step that the rank had reached before the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.core.span_schema import Phase

PHASES = len(Phase)
SCATTERED = 255
"""Place of a cell (step, rank, phase) whose spans are not all at one place."""

SecondsArray = npt.NDArray[np.float32]
PlaceArray = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ScatteredSpans:
    """Spans of cells that barriers cut: step, rank, phase, seconds and place, [N] each."""

    step: IntArray
    rank: IntArray
    phase: IntArray
    seconds: FloatArray
    place: IntArray


@dataclass(frozen=True)
class PhaseTimes:
    """Work of every rank without communication, by phase; see the module for places.

    Attributes:
        shape: number of steps and ranks.
        seconds: seconds of each phase that occurs, [S, W] each; in single precision, which is more
            exact than the measurement of a duration.
        place: place of each phase that occurs, [S, W] each; `SCATTERED` if there are several
            places.
        scattered: spans of the cells with several places.
        sent_s: seconds of communication with single peers, [W, W + 2]: the ranks, the server, and
            unknown peers.
    """

    shape: tuple[int, int]
    seconds: Mapping[int, SecondsArray]
    place: Mapping[int, PlaceArray]
    scattered: ScatteredSpans
    sent_s: FloatArray

    def of_rank(self, rank: int, codes: Sequence[int] = range(PHASES)) -> FloatArray:
        """Return the seconds of some phases of a rank, [S, codes]."""
        columns = np.zeros((self.shape[0], len(codes)))
        for column, code in enumerate(codes):
            if code in self.seconds:
                columns[:, column] = self.seconds[code][:, rank]
        return columns

    def total(self, codes: Sequence[int] = range(PHASES)) -> FloatArray:
        """Return the seconds of some phases together, [S, W]."""
        total = np.zeros(self.shape)
        for code in codes:
            if code in self.seconds:
                total += self.seconds[code]
        return total

    def sum_by_place(
        self, rank: int, codes: Sequence[int], share: FloatArray, first: IntArray, places: int
    ) -> FloatArray:
        """Sum shares of a rank's work by place.

        Args:
            rank: number of the rank.
            codes: codes of the phases.
            share: share of each phase that counts, [S, codes].
            first: number of the first place of each step, [S].
            places: number of places; work beyond them counts at the last one.

        Returns:
            Seconds, [places].
        """
        total = np.zeros(places)
        scattered = self.scattered
        own = scattered.rank == rank
        for column, code in enumerate(codes):
            if code not in self.seconds:
                continue
            place = self.place[code][:, rank].astype(np.int64)
            together = place != SCATTERED
            at = np.minimum(first + place, places - 1)
            seconds = self.seconds[code][:, rank] * share[:, column] * together
            total += np.bincount(at, weights=seconds, minlength=places)
            rows = np.flatnonzero(own & (scattered.phase == code))
            if len(rows):
                at = np.minimum(first[scattered.step[rows]] + scattered.place[rows], places - 1)
                seconds = scattered.seconds[rows] * share[scattered.step[rows], column]
                total += np.bincount(at, weights=seconds, minlength=places)
        return total
