"""Local work by step, rank and phase, and between which barriers each of it lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.core.span_schema import Phase

PHASES = len(Phase)
SCATTERED = 255
"""The place of a cell whose spans are not all in one."""

SecondsArray = npt.NDArray[np.float32]
PlaceArray = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ScatteredSpans:
    """Spans of cells that barriers cut through: step, rank, phase, seconds, place, [N] each."""

    step: IntArray
    rank: IntArray
    phase: IntArray
    seconds: FloatArray
    place: IntArray


@dataclass(frozen=True)
class PhaseTimes:
    """What ranks did by themselves, phase by phase. A place is how many of its rank's barriers of
    the same step came before.

    Attributes:
        shape: steps and ranks.
        seconds: of the phases that occur, [S, W] each; in single precision, since a duration is not
            measured as well as that.
        place: of the same, [S, W] each; `SCATTERED` where there are several.
        scattered: the spans of those cells.
        sent_s: seconds of sending to and from single others, [W, W + 2]: the ranks, the server, and
            whoever is not known.
    """

    shape: tuple[int, int]
    seconds: Mapping[int, SecondsArray]
    place: Mapping[int, PlaceArray]
    scattered: ScatteredSpans
    sent_s: FloatArray

    def of_rank(self, rank: int, codes: Sequence[int] = range(PHASES)) -> FloatArray:
        """Seconds of some phases of a rank, [S, codes]."""
        columns = np.zeros((self.shape[0], len(codes)))
        for column, code in enumerate(codes):
            if code in self.seconds:
                columns[:, column] = self.seconds[code][:, rank]
        return columns

    def total(self, codes: Sequence[int] = range(PHASES)) -> FloatArray:
        """Seconds of some phases together, [S, W]."""
        total = np.zeros(self.shape)
        for code in codes:
            if code in self.seconds:
                total += self.seconds[code]
        return total

    def sum_by_place(
        self, rank: int, codes: Sequence[int], share: FloatArray, first: IntArray, places: int
    ) -> FloatArray:
        """A share of a rank's work, by where it lies.

        Args:
            rank: whose.
            codes: of which phases.
            share: of each, [S, codes].
            first: number of the first place of each step, [S].
            places: how many there are; what lies beyond is in the last.

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
