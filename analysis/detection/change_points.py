"""Change points of series: the segmentation with the least squared deviations plus a penalty.

The search is exact: optimal partitioning with functional pruning (Maidstone, Hocking, Rigaill and
Fearnhead, Statistics and Computing 27, 2017). A possible start of the last segment is dropped as
soon as other starts are better for every mean that the segment could have. About fifty starts
remain, however long the series is. Many series are searched together, in arrays of numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray

# Series are cut into chunks of this many steps. A chunk's border counts as a change point too.
_CHUNK = 4000
# Number of chunks that are searched together. With more, arrays exceed the processor's cache.
_CHUNKS_AT_ONCE = 64


def find_change_points(series: Iterable[FloatArray], least: int) -> Iterator[list[int]]:
    """Yield the change points of each series: the first steps of its segments, without 0.

    Args:
        series: values in units of their noise, [N]. The penalty of a segment is 4 ln N.
        least: least number of steps of a segment.
    """
    group: list[FloatArray] = []
    for values in series:
        group.append(values)
        if sum(len(_cut(each)) for each in group) >= _CHUNKS_AT_ONCE:
            yield from _find_in_group(group, least)
            group = []
    if group:
        yield from _find_in_group(group, least)


def _find_in_group(group: Sequence[FloatArray], least: int) -> Iterator[list[int]]:
    chunks = [values[begin : begin + _CHUNK] for values in group for begin in _cut(values)]
    penalties = [4.0 * math.log(max(len(values), 2)) for values in group for _ in _cut(values)]
    found = iter(find_best_segments(chunks, penalties, least))
    for values in group:
        starts = [begin + start for begin in _cut(values) for start in next(found)]
        yield starts[1:]


def _cut(values: FloatArray) -> range:
    """Return the first steps of a series' chunks."""
    return range(0, len(values), _CHUNK)


def find_best_segments(
    series: Sequence[FloatArray], penalties: Sequence[float], least: int
) -> list[list[int]]:
    """Return the first steps of the segments of the best segmentation of each series.

    Args:
        series: values, [N] each; at least one series, and at least one value each.
        penalties: penalty of a segment, for each series.
        least: least number of steps of a segment; a shorter series is one segment.
    """
    # All blocks are complete: values after the end of a series do not change what is before it.
    width = max(len(values) for values in series) // least * least + least - 1
    padded = np.zeros((len(series), width))
    for row, values in zip(padded, series, strict=True):
        # Numbers near 0 have smaller rounding errors.
        row[: len(values)] = values - values.mean()
    last_starts = _find_last_starts(padded, np.array(penalties)[:, None], least)
    return [_trace_back(row, len(values)) for row, values in zip(last_starts, series, strict=True)]


def _trace_back(last_starts: IntArray, end: int) -> list[int]:
    """Return the starts of all segments up to `end`, given the last start for each end."""
    starts = [int(last_starts[end])]
    while starts[-1]:
        starts.append(int(last_starts[starts[-1]]))
    return starts[::-1]


def _find_last_starts(values: FloatArray, penalty: FloatArray, least: int) -> IntArray:
    """Return the start of the last segment in the best segmentation up to each end, [L, N + 1].

    The cost of a segmentation is the sum of its squared deviations and penalties, minus the sum of
    all squares, which is the same for all segmentations up to one end.

    Args:
        values: values of L series, [L, N]; N + 1 is a multiple of `least`.
        penalty: penalty of a segment, [L, 1].
        least: least number of steps of a segment.
    """
    count = values.shape[1]
    sums, costs = np.zeros((2, len(values), count + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    last_starts = np.zeros(sums.shape, dtype=np.int64)
    # Up to the first block there is room for one segment only.
    single = np.arange(1, min(2 * least, count + 1))
    costs[:, single] = penalty - sums[:, single] ** 2 / single
    too_short = ~np.tri(least, dtype=np.bool_)
    starts = _create_starts(costs, sums, 0, 1)
    # In a block of `least` ends, all last segments start before the block.
    for end in range(2 * least, count + 1, least):
        starts = np.concatenate([starts, _create_starts(costs, sums, end - least, end)], axis=2)
        index, start_costs, start_sums = starts[:3]
        ends = np.arange(end, end + least)
        lengths = ends[:, None] - index[:, None]
        totals = sums[:, ends, None] - start_sums[:, None]
        means = totals / lengths
        totals *= means
        reached = np.subtract(start_costs[:, None], totals, out=totals)
        reached[:, :, -least:][:, too_short] = np.inf
        best = reached.argmin(axis=2)
        costs[:, ends] = np.take_along_axis(reached, best[:, :, None], 2)[:, :, 0] + penalty
        last_starts[:, ends] = np.take_along_axis(index, best, 1)
        last = reached[:, -1], lengths[:, -1], means[:, -1]
        starts = _drop_starts(starts, *last, costs[:, ends[-1:]])
    return last_starts


def _create_starts(costs: FloatArray, sums: FloatArray, first: int, stop: int) -> FloatArray:
    """Return a table of K possible starts of the last segment, ascending, [5, L, K].

    It contains their indices, the costs and sums of the values before them, and the bounds of the
    means for which they are better than later starts: none yet.
    """
    starts = np.empty((5, len(costs), stop - first))
    starts[0], starts[1], starts[2] = (
        np.arange(first, stop),
        costs[:, first:stop],
        sums[:, first:stop],
    )
    starts[3], starts[4] = -np.inf, np.inf
    return starts


def _drop_starts(
    starts: FloatArray,
    reached: FloatArray,
    lengths: FloatArray,
    means: FloatArray,
    cost: FloatArray,
) -> FloatArray:
    """Drop the starts that are the best ones for no mean of the last segment.

    Two starts differ by the values between them only, whatever comes later. So the means for which
    the earlier start is better form an interval that never changes.

    Args:
        starts: table of K starts, [5, L, K].
        reached: cost of the best segmentation up to the current end with a last segment from each
            start, without the penalty of that segment, [L, K].
        lengths: number of steps of these last segments, [L, K].
        means: means of these last segments, [L, K].
        cost: cost of the best segmentation up to the current end, [L, 1].
    """
    _, start_costs, _, low, high = starts

    def is_start_before_better(mean: FloatArray) -> BoolArray:
        own = reached + lengths * (mean - means) ** 2
        before = reached[:, :-1] + lengths[:, :-1] * (mean[:, 1:] - means[:, :-1]) ** 2
        better: BoolArray = before <= own[:, 1:]
        return better

    dropped = np.isinf(start_costs) | (low > high)
    # If the start before is better at both bounds, it is better between them. New starts have no
    # bounds yet.
    dropped[:, 1:] |= (
        np.isfinite(low[:, 1:]) & is_start_before_better(low) & is_start_before_better(high)
    )
    # The current end becomes a start too, which is better outside of this interval.
    reach = np.sqrt(np.maximum(cost - reached, 0.0) / lengths)
    kept = starts.copy()
    kept[3], kept[4] = np.maximum(low, means - reach), np.minimum(high, means + reach)
    # Rows keep different numbers of starts; infinite costs fill the shorter ones up.
    kept[1][dropped] = np.inf
    order = dropped.argsort(axis=1, kind="stable")[:, : int((~dropped).sum(axis=1).max())]
    return np.take_along_axis(kept, order[None], axis=2)
