"""Activity of ranks in runs that do not fit in memory.

Activity is accumulated in cells, part by part. Close-ups read their spans again.
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
"""Largest number of cells; a longer run doubles their width, so at least half stay in use."""

# About one millisecond.
_FIRST_WIDTH_NS = 1 << 20
_KINDS = (*STACK_ORDER, palette.BACKGROUND_TRANSFER)

CellArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CellActivity(RankActivity):
    """Activity of ranks from cells of fixed width.

    Shares of a window come from these cells if its own cells are at least as wide, and otherwise
    from the window's spans.

    Attributes:
        run: run that the cells belong to.
        width_ns: width of a cell.
        busy_ns: nanoseconds by cell, rank and series, [cells, W, series].
    """

    run: RunData
    width_ns: int
    busy_ns: CellArray

    @property
    def ranks(self) -> IntArray:
        """Return the ranks with any activity; see `RankActivity.ranks`."""
        return np.flatnonzero(self.busy_ns.any(axis=(0, 2)))

    def compute_shares(
        self, ranks: IntArray, first_ns: float, last_ns: float, cells: int
    ) -> FloatArray:
        """Return shares of a window; see `RankActivity.compute_shares`."""
        if last_ns - first_ns < cells * self.width_ns:
            intervals = collect_intervals(self.run, self.run.spans.overlapping(first_ns, last_ns))
            close = build_interval_activity(
                intervals, self.kinds, has_background=self.has_background, end_ns=self.end_ns
            )
            return close.compute_shares(ranks, first_ns, last_ns, cells)
        # Interpolating the cumulative time assumes even activity within a stored cell.
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
    """Return the activity of a run's ranks, which is computed once.

    It is computed from the spans if they are in memory, and otherwise from cells.
    """
    return run.memoize(
        build_cell_activity if isinstance(run.spans, StoredSpans) else build_activity
    )


def build_cell_activity(run: RunData) -> CellActivity:
    """Build the activity of a run's ranks in at most `MAX_CELLS` cells.

    Args:
        run: run whose spans are read once, part by part.
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
    """Nanoseconds by kind, cell and rank, for a run of unknown length.

    When an interval ends after the last cell, pairs of cells are merged.

    Attributes:
        width_ns: width of a cell.
        busy_ns: nanoseconds, [kinds, cells, W]; the last kind is background transfers.
    """

    def __init__(self, world: int, cells: int = MAX_CELLS, width_ns: int = _FIRST_WIDTH_NS) -> None:
        self.width_ns = width_ns
        self.busy_ns = np.zeros((len(_KINDS), cells, world))

    def add(self, intervals: Mapping[palette.Paint, IntervalColumns]) -> None:
        """Add intervals of each kind."""
        last_ns = max((int(end.max(initial=0)) for _, _, end in intervals.values()), default=0)
        while last_ns > self.width_ns * self.busy_ns.shape[1]:
            self._widen()
        for number, paint in enumerate(_KINDS):
            self._add(self.busy_ns[number], *intervals[paint])

    def _add(self, busy_ns: FloatArray, rank: IntArray, start: IntArray, end: IntArray) -> None:
        """Add each interval to its cells.

        Each round adds the part in an interval's first cell and continues with the rest.
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
