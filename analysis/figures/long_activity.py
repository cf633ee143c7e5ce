"""What every rank was doing in a run too long to be held: added up in cells part by part, and
looked at closely where that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from laggard.analysis.columns import FloatArray, IntArray
from laggard.analysis.figures import palette
from laggard.analysis.figures.activity import (
    STACK,
    Activity,
    Piece,
    activity_of_pieces,
    build_activity,
    end_of,
    pieces_of,
)
from laggard.analysis.load import Run
from laggard.analysis.stored import StoredSpans

CELLS = 1 << 14
"""Most of them; about half as many are in use at least."""

_FIRST_WIDTH_NS = 1 << 20
_KINDS = (*STACK, palette.BESIDE)

CellArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LongActivity(Activity):
    """Shares of windows whose cells are as wide as these or wider come from them, those of finer
    ones from the spans there.

    Attributes:
        run: whose spans they are.
        width_ns: of a cell.
        busy_ns: nanoseconds by cell, rank and series, [cells, W, series].
    """

    run: Run
    width_ns: int
    busy_ns: CellArray

    @property
    def ranks(self) -> IntArray:
        """See `Activity.ranks`."""
        return np.flatnonzero(self.busy_ns.any(axis=(0, 2)))

    def shares(self, ranks: IntArray, first_ns: float, last_ns: float, cells: int) -> FloatArray:
        """See `Activity.shares`."""
        if last_ns - first_ns < cells * self.width_ns:
            pieces = pieces_of(self.run, self.run.spans.around(first_ns, last_ns))
            close = activity_of_pieces(pieces, self.kinds, beside=self.beside, end_ns=self.end_ns)
            return close.shares(ranks, first_ns, last_ns, cells)
        borders = np.arange(len(self.busy_ns) + 1) * float(self.width_ns)
        edges = np.linspace(first_ns, last_ns, cells + 1)
        table = np.zeros((cells, len(ranks), self.series))
        for row, rank in enumerate(ranks.tolist()):
            for kind in range(self.series):
                until = np.concatenate(
                    [[0.0], np.cumsum(self.busy_ns[:, rank, kind], dtype=np.float64)]
                )
                table[:, row, kind] = np.diff(np.interp(edges, borders, until))
        return np.minimum(table / ((last_ns - first_ns) / cells), 1.0)


def activity_of(run: Run) -> Activity:
    """What a run's ranks did, worked out once: from its spans where they are held, else from
    cells.
    """
    return run.once(add_up if isinstance(run.spans, StoredSpans) else build_activity)


def add_up(run: Run) -> LongActivity:
    """What a run's ranks did, in at most `CELLS` cells.

    Args:
        run: whose spans are read once, part by part.
    """
    cells, end_ns = GrowingCells(run.world_size), 1
    for spans in run.spans.parts():
        cells.add(pieces_of(run, spans))
        end_ns = max(end_ns, end_of(spans))
    kinds = tuple(paint for number, paint in enumerate(STACK) if cells.busy_ns[number].any())
    beside = bool(cells.busy_ns[len(STACK)].any())
    numbers = [*(STACK.index(paint) for paint in kinds), *([len(STACK)] if beside else [])]
    busy_ns: CellArray = np.moveaxis(cells.busy_ns[numbers], 0, 2).astype(np.float32)
    return LongActivity(end_ns, kinds, beside, {}, run, cells.width_ns, busy_ns)


class GrowingCells:
    """Nanoseconds by kind, cell and rank; when time goes on beyond the last cell, two become one.

    Attributes:
        width_ns: of a cell.
        busy_ns: [kinds, cells, W]; the last kind is what went on beside.
    """

    def __init__(self, world: int, cells: int = CELLS, width_ns: int = _FIRST_WIDTH_NS) -> None:
        self.width_ns = width_ns
        self.busy_ns = np.zeros((len(_KINDS), cells, world))

    def add(self, pieces: Mapping[palette.Paint, Piece]) -> None:
        """Add what was done, by kind."""
        last_ns = max((int(end.max(initial=0)) for _, _, end in pieces.values()), default=0)
        while last_ns > self.width_ns * self.busy_ns.shape[1]:
            self._widen()
        for number, paint in enumerate(_KINDS):
            self._add(self.busy_ns[number], *pieces[paint])

    def _add(self, busy_ns: FloatArray, rank: IntArray, start: IntArray, end: IntArray) -> None:
        """Adds each piece to its cells: all to its first one, and what is beyond that to the next,
        until nothing is.
        """
        world = busy_ns.shape[1]
        while len(rank):
            cell = start // self.width_ns
            until = np.minimum(end, (cell + 1) * self.width_ns)
            first = int(cell.min())
            rows = int(cell.max()) - first + 1
            taken = np.bincount(
                (cell - first) * world + rank, weights=until - start, minlength=rows * world
            )
            busy_ns[first : first + rows] += taken.reshape(rows, world)
            beyond = end > until
            rank, start, end = rank[beyond], until[beyond], end[beyond]

    def _widen(self) -> None:
        kinds, cells, world = self.busy_ns.shape
        paired = self.busy_ns.reshape(kinds, cells // 2, 2, world).sum(axis=2)
        self.busy_ns = np.concatenate([paired, np.zeros_like(paired)], axis=1)
        self.width_ns *= 2
