"""Activity of every rank over time, as shares of time in cells of any width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from laggard.analysis.report.style import palette
from laggard.analysis.tables.columns import FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.collective_waits import compute_wait_ns
from laggard.core.span_schema import Flag, Lane, Phase

STACK_ORDER = (
    palette.FETCH,
    palette.PHASES[Phase.REHEARSE],
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
"""Kinds of activity of the main lane, which never overlap, in the order of stacking."""


@dataclass(frozen=True)
class BusyIntervals:
    """Intervals in which one rank had one kind of activity.

    Attributes:
        start_ns: starts, ascending, [N]; intervals do not overlap.
        end_ns: ends, [N].
        before_ns: nanoseconds of the activity before each interval, and in total, [N + 1].
    """

    start_ns: IntArray
    end_ns: IntArray
    before_ns: IntArray

    def busy_before(self, time_ns: FloatArray) -> FloatArray:
        """Return the nanoseconds of the activity before each time, [M]."""
        begun = np.searchsorted(self.start_ns, time_ns, side="right")
        last = np.maximum(begun - 1, 0)
        # The part of the last begun interval that lies after the time does not count.
        ahead = np.where(begun > 0, np.maximum(self.end_ns[last] - time_ns, 0.0), 0.0)
        before: FloatArray = self.before_ns[begun].astype(np.float64)
        return before - ahead


@dataclass(frozen=True)
class RankActivity:
    """Activity of ranks from the first-step barrier to the end of the last span.

    Attributes:
        end_ns: end of the last span; at least 1.
        kinds: kinds that occur, in the order of `STACK_ORDER`.
        has_background: if true, there were background transfers (gradient buckets during backward,
            models sent by a thread).
        intervals_by_kind: intervals by rank and index of their kind; background transfers have the
            index after the last kind.
    """

    end_ns: int
    kinds: tuple[palette.Paint, ...]
    has_background: bool
    intervals_by_kind: Mapping[tuple[int, int], BusyIntervals]

    @property
    def ranks(self) -> IntArray:
        """Return the ranks with any activity, in order."""
        return np.unique([rank for rank, _ in self.intervals_by_kind]).astype(np.int64)

    @property
    def series_count(self) -> int:
        """Return the number of shares of a cell: one per kind, and one for background transfers."""
        return len(self.kinds) + self.has_background

    def compute_shares(
        self, ranks: IntArray, first_ns: float, last_ns: float, cells: int
    ) -> FloatArray:
        """Return the shares of ranks' activities in a window of the run.

        Args:
            ranks: ranks to return, [R].
            first_ns: start of the window.
            last_ns: end of the window.
            cells: number of equal parts of the window.

        Returns:
            Shares of each cell's time, [cells, R, series]; those of the kinds add up to at most 1.
        """
        edges = np.linspace(first_ns, last_ns, cells + 1)
        width = max((last_ns - first_ns) / cells, 1e-9)
        table = np.zeros((cells, len(ranks), self.series_count))
        for row, rank in enumerate(ranks.tolist()):
            for kind in range(self.series_count):
                intervals_by_kind = self.intervals_by_kind.get((rank, kind))
                if intervals_by_kind is not None:
                    table[:, row, kind] = np.diff(intervals_by_kind.busy_before(edges)) / width
        return table


def build_activity(run: RunData) -> RankActivity:
    """Sort a run's spans by rank and kind.

    Args:
        run: any run with spans.

    Returns:
        The activity of its ranks; communication is divided into wait and transfer as in the time
        split.
    """
    intervals = collect_intervals(run, run.spans)
    kinds = tuple(paint for paint in STACK_ORDER if len(intervals[paint][0]))
    has_background = bool(len(intervals[palette.BACKGROUND_TRANSFER][0]))
    return build_interval_activity(
        intervals, kinds, has_background=has_background, end_ns=find_end_ns(run.spans)
    )


def build_interval_activity(
    intervals: Mapping[palette.Paint, IntervalColumns],
    kinds: tuple[palette.Paint, ...],
    *,
    has_background: bool,
    end_ns: int,
) -> RankActivity:
    """Sort intervals by rank and kind.

    Args:
        intervals: intervals of each kind.
        kinds: kinds to distinguish, in order.
        has_background: if true, background transfers are included.
        end_ns: end of the run.
    """
    intervals_by_kind: dict[tuple[int, int], BusyIntervals] = {}
    for number, paint in enumerate(
        [*kinds, palette.BACKGROUND_TRANSFER] if has_background else kinds
    ):
        intervals_by_kind |= {
            (each, number): found for each, found in _merge_intervals(*intervals[paint])
        }
    return RankActivity(end_ns, kinds, has_background, intervals_by_kind)


def find_end_ns(spans: SpanColumns) -> int:
    """Return the end of the last finished span of the main lane, at least 1."""
    main = (spans.lane == Lane.MAIN) & ((spans.flags & Flag.TRUNCATED) == 0)
    return max(int(spans.end_ns[main].max(initial=1)), 1)


IntervalColumns = tuple[IntArray, IntArray, IntArray]
"""Ranks, starts and ends in nanoseconds, [N] each."""


def collect_intervals(run: RunData, spans: SpanColumns) -> dict[palette.Paint, IntervalColumns]:
    """Return the intervals of each kind from the first-step barrier on.

    Background transfers are a kind of their own.

    Args:
        run: run that the spans belong to.
        spans: spans of whole steps.
    """
    whole = spans.where((spans.flags & Flag.TRUNCATED) == 0)
    main = whole.where(whole.lane == Lane.MAIN)
    # A span's wait comes first; for phases other than communication it is empty.
    waits = main.start_ns + compute_wait_ns(run, main)
    intervals: dict[palette.Paint, list[IntervalColumns]] = {paint: [] for paint in STACK_ORDER}
    intervals[palette.WAIT].append((main.rank, main.start_ns, waits))
    ends = main.end_ns
    for phase, paint in palette.PHASES.items():
        rows = np.flatnonzero(main.phase == phase.code)
        intervals[paint].append((main.rank[rows], waits[rows], ends[rows]))
    intervals[palette.BACKGROUND_TRANSFER] = [
        _collect_transfers(run, whole.where(whole.lane == lane))
        for lane in (Lane.BUCKETS, Lane.BACKGROUND)
    ]
    return {paint: _concatenate_intervals(parts) for paint, parts in intervals.items()}


def _collect_transfers(run: RunData, spans: SpanColumns) -> IntervalColumns:
    waits = spans.start_ns + compute_wait_ns(run, spans)
    return spans.rank, waits, spans.end_ns


def _concatenate_intervals(parts: list[IntervalColumns]) -> IntervalColumns:
    """Return all intervals that are not empty, cut at the first-step barrier."""
    rank, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    start = np.maximum(start, 0)
    kept = end > start
    return rank[kept], start[kept], end[kept]


def _merge_intervals(
    rank: IntArray, start: IntArray, end: IntArray
) -> Iterable[tuple[int, BusyIntervals]]:
    """Yield every rank's intervals in order, without overlaps."""
    order = np.lexsort((start, rank))
    rank, start, end = rank[order], start[order], end[order]
    ranks, firsts = np.unique(rank, return_index=True)
    for each, first, last in zip(
        ranks.tolist(), firsts, np.append(firsts, len(rank))[1:], strict=True
    ):
        # Time that several intervals share counts once: each begins where the earlier ones end.
        begins, ends = start[first:last], np.maximum.accumulate(end[first:last])
        begins = np.maximum(begins, np.concatenate([begins[:1], ends[:-1]]))
        apart = ends > begins
        begins, ends = begins[apart], ends[apart]
        yield each, BusyIntervals(begins, ends, np.concatenate([[0], np.cumsum(ends - begins)]))
