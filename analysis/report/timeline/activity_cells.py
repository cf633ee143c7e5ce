"""What every rank was doing in a run too long to be held: added up in cells part by part, and
looked at closely where that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from laggard.analysis.report.style import palette
from laggard.analysis.report.timeline.activity import (
    STACK_ORDER,
    IntervalColumns,
    RankActivity,
    build_activity,
    build_interval_activity,
    collect_intervals,
    find_end_ns,
)
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.stored_tables import StoredSpans

MAX_CELLS = 1 << 14
"""Most of them; about half as many are in use at least."""

_FIRST_WIDTH_NS = 1 << 20
_KINDS = (*STACK_ORDER, palette.BACKGROUND_TRANSFER)

CellArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CellActivity(RankActivity):
    """Shares of windows whose cells are as wide as these or wider come from them, those of finer
    ones from the spans there.

    Attributes:
        run: whose spans they are.
        width_ns: of a cell.
        busy_ns: nanoseconds by cell, rank and series, [cells, W, series].
    """

    run: RunData
    width_ns: int
    busy_ns: CellArray

    @property
    def ranks(self) -> IntArray:
        """See `RankActivity.ranks`."""
        return np.flatnonzero(self.busy_ns.any(axis=(0, 2)))

    def compute_shares(
        self, ranks: IntArray, first_ns: float, last_ns: float, cells: int
    ) -> FloatArray:
        """See `RankActivity.compute_shares`."""
        if last_ns - first_ns < cells * self.width_ns:
            intervals = collect_intervals(self.run, self.run.spans.overlapping(first_ns, last_ns))
            close = build_interval_activity(
                intervals, self.kinds, has_background=self.has_background, end_ns=self.end_ns
            )
            return close.compute_shares(ranks, first_ns, last_ns, cells)
        borders = np.arange(len(self.busy_ns) + 1) * float(self.width_ns)
        edges = np.linspace(first_ns, last_ns, cells + 1)
        table = np.zeros((cells, len(ranks), self.series_count))
        for row, rank in enumerate(ranks.tolist()):
            for kind in range(self.series_count):
                until = np.concatenate(
                    [[0.0], np.cumsum(self.busy_ns[:, rank, kind], dtype=np.float64)]
                )
                table[:, row, kind] = np.diff(np.interp(edges, borders, until))
        return np.minimum(table / ((last_ns - first_ns) / cells), 1.0)


def get_activity(run: RunData) -> RankActivity:
    """What a run's ranks did, worked out once: from its spans where they are held, else from
    cells.
    """
    return run.memoize(
        build_cell_activity if isinstance(run.spans, StoredSpans) else build_activity
    )


def build_cell_activity(run: RunData) -> CellActivity:
    """What a run's ranks did, in at most `MAX_CELLS` cells.

    Args:
        run: whose spans are read once, part by part.
    """
    cells, end_ns = GrowingCells(run.world_size), 1
    for spans in run.spans.parts():
        cells.add(collect_intervals(run, spans))
        end_ns = max(end_ns, find_end_ns(spans))
    kinds = tuple(paint for number, paint in enumerate(STACK_ORDER) if cells.busy_ns[number].any())
    has_background = bool(cells.busy_ns[len(STACK_ORDER)].any())
    numbers = [
        *(STACK_ORDER.index(paint) for paint in kinds),
        *([len(STACK_ORDER)] if has_background else []),
    ]
    busy_ns: CellArray = np.moveaxis(cells.busy_ns[numbers], 0, 2).astype(np.float32)
    return CellActivity(end_ns, kinds, has_background, {}, run, cells.width_ns, busy_ns)


class GrowingCells:
    """Nanoseconds by kind, cell and rank; when time goes on beyond the last cell, two become one.

    Attributes:
        width_ns: of a cell.
        busy_ns: [kinds, cells, W]; the last kind is what went on beside.
    """

    def __init__(self, world: int, cells: int = MAX_CELLS, width_ns: int = _FIRST_WIDTH_NS) -> None:
        self.width_ns = width_ns
        self.busy_ns = np.zeros((len(_KINDS), cells, world))

    def add(self, intervals: Mapping[palette.Paint, IntervalColumns]) -> None:
        """Add what was done, by kind."""
        last_ns = max((int(end.max(initial=0)) for _, _, end in intervals.values()), default=0)
        while last_ns > self.width_ns * self.busy_ns.shape[1]:
            self._widen()
        for number, paint in enumerate(_KINDS):
            self._add(self.busy_ns[number], *intervals[paint])

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
