"""What every rank was doing when, as shares of time in cells as wide as one likes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from laggard.analysis.arrivals import waited_ns
from laggard.analysis.columns import FloatArray, IntArray, SpanColumns
from laggard.analysis.figures import palette
from laggard.analysis.load import Run
from laggard.span_schema import Flag, Lane, Phase

STACK = (
    palette.FETCH,
    palette.PREP,
    palette.PHASES[Phase.H2D],
    palette.PHASES[Phase.FORWARD],
    palette.PHASES[Phase.BACKWARD],
    palette.TRANSFER,
    palette.PHASES[Phase.OPTIMIZER],
    palette.PHASES[Phase.CHECKPOINT],
    palette.OTHER,
    palette.WAIT,
    palette.EVALUATE,
)
"""Kinds of what a rank does one at a time, in the order in which their shares are stacked."""


@dataclass(frozen=True)
class Spells:
    """When one rank did one thing: starts and ends in order, apart from each other, [N];
    nanoseconds before each, [N + 1].
    """

    start_ns: IntArray
    end_ns: IntArray
    before_ns: IntArray

    def until(self, time_ns: FloatArray) -> FloatArray:
        """Nanoseconds of it before each moment, [M]."""
        begun = np.searchsorted(self.start_ns, time_ns, side="right")
        last = np.maximum(begun - 1, 0)
        ahead = np.where(begun > 0, np.maximum(self.end_ns[last] - time_ns, 0.0), 0.0)
        before: FloatArray = self.before_ns[begun].astype(np.float64)
        return before - ahead


@dataclass(frozen=True)
class Activity:
    """What ranks did, from the first-step barrier to the end of the last span.

    Attributes:
        end_ns: that end; at least 1.
        kinds: what occurs, in the order of `STACK`.
        beside: whether there were transfers beside the training (gradient buckets during backward,
            models sent by a thread).
        spells: by rank and index of its kind; transfers beside come after the kinds.
    """

    end_ns: int
    kinds: tuple[palette.Paint, ...]
    beside: bool
    spells: Mapping[tuple[int, int], Spells]

    @property
    def ranks(self) -> IntArray:
        """Ranks that did anything, in order."""
        return np.unique([rank for rank, _ in self.spells]).astype(np.int64)

    @property
    def series(self) -> int:
        """Number of shares that a cell has: one per kind, and one for what went on beside."""
        return len(self.kinds) + self.beside

    def shares(self, ranks: IntArray, first_ns: float, last_ns: float, cells: int) -> FloatArray:
        """How ranks spent a window of the run.

        Args:
            ranks: which, [R].
            first_ns: start of the window.
            last_ns: its end.
            cells: number of equal parts of it.

        Returns:
            Shares of each cell's time, [cells, R, series]; those of the kinds add up to at most 1.
        """
        edges = np.linspace(first_ns, last_ns, cells + 1)
        width = max((last_ns - first_ns) / cells, 1e-9)
        table = np.zeros((cells, len(ranks), self.series))
        for row, rank in enumerate(ranks.tolist()):
            for kind in range(self.series):
                spells = self.spells.get((rank, kind))
                if spells is not None:
                    table[:, row, kind] = np.diff(spells.until(edges)) / width
        return table


def build_activity(run: Run) -> Activity:
    """Sorts a run's spans by rank and kind.

    Args:
        run: any run with spans.

    Returns:
        What its ranks did; communication is told apart into waiting and transfer as in the time
        split.
    """
    pieces = pieces_of(run, run.spans)
    kinds = tuple(paint for paint in STACK if len(pieces[paint][0]))
    beside = bool(len(pieces[palette.BESIDE][0]))
    return activity_of_pieces(pieces, kinds, beside=beside, end_ns=end_of(run.spans))


def activity_of_pieces(
    pieces: Mapping[palette.Paint, Piece],
    kinds: tuple[palette.Paint, ...],
    *,
    beside: bool,
    end_ns: int,
) -> Activity:
    """Sorts pieces by rank and kind.

    Args:
        pieces: by what was done.
        kinds: what is told apart, and in which order.
        beside: whether what went on beside is too.
        end_ns: end of the run.
    """
    spells: dict[tuple[int, int], Spells] = {}
    for number, paint in enumerate([*kinds, palette.BESIDE] if beside else kinds):
        spells |= {(each, number): found for each, found in _spells(*pieces[paint])}
    return Activity(end_ns, kinds, beside, spells)


def end_of(spans: SpanColumns) -> int:
    """End of the last span of the main lane that was finished, at least 1."""
    main = (spans.lane == Lane.MAIN) & ((spans.flags & Flag.TRUNCATED) == 0)
    return max(int(spans.end_ns[main].max(initial=1)), 1)


Piece = tuple[IntArray, IntArray, IntArray]
"""Ranks, starts and ends in nanoseconds, [N] each."""


def pieces_of(run: Run, spans: SpanColumns) -> dict[palette.Paint, Piece]:
    """What was done, from the first-step barrier on.

    Args:
        run: whose spans these are.
        spans: of whole steps.

    Returns:
        By kind, and what went on beside.
    """
    whole = spans.where((spans.flags & Flag.TRUNCATED) == 0)
    main = whole.where(whole.lane == Lane.MAIN)
    waits = main.start_ns + waited_ns(run, main)
    pieces: dict[palette.Paint, list[Piece]] = {paint: [] for paint in STACK}
    pieces[palette.WAIT].append((main.rank, main.start_ns, waits))
    for phase, paint in palette.PHASES.items():
        rows = main.phase == phase.code
        pieces[paint].append((main.rank[rows], waits[rows], main.end_ns[rows]))
    pieces[palette.BESIDE] = [
        _transfers(run, whole.where(whole.lane == lane)) for lane in (Lane.BUCKETS, Lane.BESIDE)
    ]
    return {paint: _joined(parts) for paint, parts in pieces.items()}


def _transfers(run: Run, spans: SpanColumns) -> Piece:
    waits = spans.start_ns + waited_ns(run, spans)
    return spans.rank, waits, spans.end_ns


def _joined(parts: list[Piece]) -> Piece:
    """What is in any of the parts and not empty, from the first-step barrier on."""
    rank, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    start = np.maximum(start, 0)
    kept = end > start
    return rank[kept], start[kept], end[kept]


def _spells(rank: IntArray, start: IntArray, end: IntArray) -> Iterable[tuple[int, Spells]]:
    """Every rank's pieces in order; what two of them share counts once."""
    order = np.lexsort((start, rank))
    rank, start, end = rank[order], start[order], end[order]
    ranks, firsts = np.unique(rank, return_index=True)
    for each, first, last in zip(
        ranks.tolist(), firsts, np.append(firsts, len(rank))[1:], strict=True
    ):
        begins, ends = start[first:last], np.maximum.accumulate(end[first:last])
        begins = np.maximum(begins, np.concatenate([begins[:1], ends[:-1]]))
        apart = ends > begins
        begins, ends = begins[apart], ends[apart]
        yield each, Spells(begins, ends, np.concatenate([[0], np.cumsum(ends - begins)]))
