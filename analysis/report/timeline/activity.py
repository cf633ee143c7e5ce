"""What every rank was doing when, as shares of time in cells as wide as one likes."""

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
class BusyIntervals:
    """When one rank did one thing: starts and ends in order, apart from each other, [N];
    nanoseconds before each, [N + 1].
    """

    start_ns: IntArray
    end_ns: IntArray
    before_ns: IntArray

    def busy_before(self, time_ns: FloatArray) -> FloatArray:
        """Nanoseconds of it before each moment, [M]."""
        begun = np.searchsorted(self.start_ns, time_ns, side="right")
        last = np.maximum(begun - 1, 0)
        ahead = np.where(begun > 0, np.maximum(self.end_ns[last] - time_ns, 0.0), 0.0)
        before: FloatArray = self.before_ns[begun].astype(np.float64)
        return before - ahead


@dataclass(frozen=True)
class RankActivity:
    """What ranks did, from the first-step barrier to the end of the last span.

    Attributes:
        end_ns: that end; at least 1.
        kinds: what occurs, in the order of `STACK_ORDER`.
        has_background: whether there were transfers beside the training (gradient buckets during
            backward, models sent by a thread).
        intervals_by_kind: by rank and index of its kind; transfers beside come after the kinds.
    """

    end_ns: int
    kinds: tuple[palette.Paint, ...]
    has_background: bool
    intervals_by_kind: Mapping[tuple[int, int], BusyIntervals]

    @property
    def ranks(self) -> IntArray:
        """Ranks that did anything, in order."""
        return np.unique([rank for rank, _ in self.intervals_by_kind]).astype(np.int64)

    @property
    def series_count(self) -> int:
        """Number of shares that a cell has: one per kind, and one for what went on beside."""
        return len(self.kinds) + self.has_background

    def compute_shares(
        self, ranks: IntArray, first_ns: float, last_ns: float, cells: int
    ) -> FloatArray:
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
        table = np.zeros((cells, len(ranks), self.series_count))
        for row, rank in enumerate(ranks.tolist()):
            for kind in range(self.series_count):
                intervals_by_kind = self.intervals_by_kind.get((rank, kind))
                if intervals_by_kind is not None:
                    table[:, row, kind] = np.diff(intervals_by_kind.busy_before(edges)) / width
        return table


def build_activity(run: RunData) -> RankActivity:
    """Sorts a run's spans by rank and kind.

    Args:
        run: any run with spans.

    Returns:
        What its ranks did; communication is told apart into waiting and transfer as in the time
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
    """Sorts pieces by rank and kind.

    Args:
        intervals: by what was done.
        kinds: what is told apart, and in which order.
        has_background: whether what went on beside is too.
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
    """End of the last span of the main lane that was finished, at least 1."""
    main = (spans.lane == Lane.MAIN) & ((spans.flags & Flag.TRUNCATED) == 0)
    return max(int(spans.end_ns[main].max(initial=1)), 1)


IntervalColumns = tuple[IntArray, IntArray, IntArray]
"""Ranks, starts and ends in nanoseconds, [N] each."""


def collect_intervals(run: RunData, spans: SpanColumns) -> dict[palette.Paint, IntervalColumns]:
    """What was done, from the first-step barrier on.

    Args:
        run: whose spans these are.
        spans: of whole steps.

    Returns:
        By kind, and what went on beside.
    """
    whole = spans.where((spans.flags & Flag.TRUNCATED) == 0)
    main = whole.where(whole.lane == Lane.MAIN)
    waits = main.start_ns + compute_wait_ns(run, main)
    intervals: dict[palette.Paint, list[IntervalColumns]] = {paint: [] for paint in STACK_ORDER}
    intervals[palette.WAIT].append((main.rank, main.start_ns, waits))
    for phase, paint in palette.PHASES.items():
        rows = main.phase == phase.code
        intervals[paint].append((main.rank[rows], waits[rows], main.end_ns[rows]))
    intervals[palette.BACKGROUND_TRANSFER] = [
        _collect_transfers(run, whole.where(whole.lane == lane))
        for lane in (Lane.BUCKETS, Lane.BACKGROUND)
    ]
    return {paint: _concatenate_intervals(parts) for paint, parts in intervals.items()}


def _collect_transfers(run: RunData, spans: SpanColumns) -> IntervalColumns:
    waits = spans.start_ns + compute_wait_ns(run, spans)
    return spans.rank, waits, spans.end_ns


def _concatenate_intervals(parts: list[IntervalColumns]) -> IntervalColumns:
    """What is in any of the parts and not empty, from the first-step barrier on."""
    rank, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    start = np.maximum(start, 0)
    kept = end > start
    return rank[kept], start[kept], end[kept]


def _merge_intervals(
    rank: IntArray, start: IntArray, end: IntArray
) -> Iterable[tuple[int, BusyIntervals]]:
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
        yield each, BusyIntervals(begins, ends, np.concatenate([[0], np.cumsum(ends - begins)]))
