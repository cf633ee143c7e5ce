"""Highest and lowest possible offset between two clocks: the geometry of `clock_fit`.

Everything is relative to one origin, so that floats hold it exactly. Times are in ns of the local
clock, offsets in ns, and slopes in ns per ns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Upper bounds are computed for blocks of times, each from at most this many points on either side:
# that limits the size of the arrays.
_WINDOW_POINTS = 512
_BLOCK_POINTS = 256
# The search for a maximum ends when it can improve by less than this.
_CONVERGED_NS = 1e-3
# A crossing of the bounds by less than this is a rounding error, not a contradiction.
_CONTRADICTION_NS = 0.1


@dataclass(frozen=True)
class DriftModel:
    """Limits of the offset's slope.

    Attributes:
        limit: largest absolute slope at any time.
        wander: largest deviation of the slope from its mean within a piece of steady drift.
    """

    limit: float
    wander: float


@dataclass(frozen=True, eq=False)
class OffsetBounds:
    """Bounds of the offset in order of time; `upper` marks the upper bounds."""

    times: Floats
    values: Floats
    upper: Bools

    def __len__(self) -> int:
        return len(self.times)

    def where(self, chosen: slice | Bools | NDArray[np.intp]) -> OffsetBounds:
        """Select some of the points."""
        return OffsetBounds(self.times[chosen], self.values[chosen], self.upper[chosen])

    def reverse_time(self) -> OffsetBounds:
        """Return the same points with time running backwards."""
        return OffsetBounds(-self.times[::-1], self.values[::-1], self.upper[::-1])

    def negate_offsets(self) -> OffsetBounds:
        """Return the same points with the opposite sign of the offset."""
        return OffsetBounds(self.times, -self.values, ~self.upper)

    @property
    def is_two_sided(self) -> bool:
        """Return whether the offset is bounded both from above and from below."""
        return bool(self.upper.any() and not self.upper.all())


@dataclass(frozen=True)
class SteadyDriftRun:
    """Piece of steady drift, with the lowest and the highest possible mean slope.

    It extends from its first observation (`start`) to its last (`end`).
    """

    start: float
    end: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class OffsetBand:
    """Range of the possible offsets between two jumps.

    Attributes:
        knots: times at which the range is given.
        low: lowest possible offset at each knot.
        high: highest possible offset at each knot.
        wander: largest deviation of the slope from its mean in the gap after each knot.
        runs: pieces of steady drift.
        slopes_before: lowest and highest slope before the first knot.
        slopes_after: lowest and highest slope after the last knot.
    """

    knots: Floats
    low: Floats
    high: Floats
    wander: Floats
    runs: tuple[SteadyDriftRun, ...]
    slopes_before: tuple[float, float]
    slopes_after: tuple[float, float]


@dataclass(frozen=True, eq=False)
class OffsetCurve:
    """Estimate of the reference's time for every local time, and the bound of its error.

    Attributes:
        knots: local times.
        reference_times: reference's time at each knot, relative to its time at the origin.
        low: lowest possible offset at each knot.
        high: highest possible offset at each knot.
        wander: as in `OffsetBand`; infinite across a jump.
        slopes_before: as in `OffsetBand`.
        slopes_after: as in `OffsetBand`.
    """

    knots: Floats
    reference_times: Floats
    low: Floats
    high: Floats
    wander: Floats
    slopes_before: tuple[float, float]
    slopes_after: tuple[float, float]

    def reference_at(self, times: Floats) -> Floats:
        """Return the reference's time at local times."""
        # The reference time itself is interpolated, not the offset: thus the result stays monotone
        # after rounding even where the reference stands still.
        before, after = 1.0 + sum(self.slopes_before) / 2, 1.0 + sum(self.slopes_after) / 2
        reference_times = np.interp(times, self.knots, self.reference_times)
        reference_times += (
            np.minimum(times - self.knots[0], 0.0) * before
            + np.maximum(times - self.knots[-1], 0.0) * after
        )
        return reference_times

    def local_at(self, reference_times: Floats) -> Floats:
        """Return the local times at which the reference shows the given times."""
        before, after = 1.0 + sum(self.slopes_before) / 2, 1.0 + sum(self.slopes_after) / 2
        times = np.interp(reference_times, self.reference_times, self.knots)
        times += (
            np.minimum(reference_times - self.reference_times[0], 0.0) / before
            + np.maximum(reference_times - self.reference_times[-1], 0.0) / after
        )
        return times

    def error_at(self, times: Floats) -> Floats:
        """Return the largest possible error of `reference_at` at local times."""
        gap = np.clip(
            np.searchsorted(self.knots, times, "right") - 1, 0, max(len(self.knots) - 2, 0)
        )
        following = np.minimum(gap + 1, len(self.knots) - 1)
        since, until = times - self.knots[gap], self.knots[following] - times
        jumped = np.isinf(self.wander[gap])
        # A curve of length d whose slope stays within c ± w deviates from the chord between its
        # ends by at most 2 w x (d - x) / d at distance x.
        within = np.maximum(since, 0.0) * np.maximum(until, 0.0)
        sag = (
            2.0 * np.where(jumped, 0.0, self.wander[gap]) * within / np.maximum(since + until, 1.0)
        )
        high = np.interp(times, self.knots, self.high) + sag
        low = np.interp(times, self.knots, self.low) - sag
        # Across a jump the only remaining fact is that neither clock ran backwards.
        inside = jumped & (since > 0) & (until > 0)
        high = np.where(inside, self.high[following] + until, high)
        low = np.where(inside, self.low[gap] - since, low)
        early, late = (
            np.minimum(times - self.knots[0], 0.0),
            np.maximum(times - self.knots[-1], 0.0),
        )
        high += early * self.slopes_before[0] + late * self.slopes_after[1]
        low += early * self.slopes_before[1] + late * self.slopes_after[0]
        middle = self.reference_at(times) - times
        return np.asarray(np.maximum(high - middle, middle - low), dtype=np.float64)


def split_at_jumps(points: OffsetBounds, limit: float) -> list[OffsetBounds]:
    """Divide the points at jumps of the clock.

    Some curve whose slope is always within ± limit fits all points of one part. Parts that are
    bounded from one side only are left out.
    """
    runs = _find_certain_runs(points, lambda rest: _count_within_any_drift(rest, limit))
    parts = [points.where(slice(first, end)) for first, end in runs if first < end]
    return [part for part in parts if part.is_two_sided]


def compute_band(segment: OffsetBounds, model: DriftModel) -> OffsetBand:
    """Compute the range of possible offsets from the points between two jumps."""
    points = _select_essential(segment, model.limit)
    knots = np.unique(points.times)
    any_high, any_low = _bound_any_drift(knots, points, model.limit)
    high, low, wander = any_high.copy(), any_low.copy(), np.full(len(knots), model.limit)
    runs = []
    for first, end in _find_certain_runs(points, lambda rest: _fit_steady_drift(rest, model)[0]):
        if first >= end:
            continue
        sure = points.where(slice(first, end))
        run = SteadyDriftRun(
            float(sure.times[0]), float(sure.times[-1]), *_fit_steady_drift(sure, model)[1:]
        )
        at = slice(*np.searchsorted(knots, [run.start, np.nextafter(run.end, np.inf)]).tolist())
        high[at] = np.minimum(
            high[at], _compute_upper_bound(sure, knots[at], run.low, run.high, model)
        )
        low[at] = np.maximum(
            low[at],
            -_compute_upper_bound(sure.negate_offsets(), knots[at], -run.high, -run.low, model),
        )
        wander[at.start : at.stop - 1] = model.wander
        runs.append(run)
    high, low = (
        _propagate_bounds(knots, high, model.limit),
        -_propagate_bounds(knots, -low, model.limit),
    )
    if (high < low - _CONTRADICTION_NS).any():
        # No permitted drift can join the steady pieces, so the drift changed more often than the
        # fewest pieces that fit suggest: only the drift limit is certain.
        high, low, wander = any_high, any_low, np.full(len(knots), model.limit)
    before = (runs[0].low - model.wander, runs[0].high + model.wander)
    after = (runs[-1].low - model.wander, runs[-1].high + model.wander)
    return OffsetBand(knots, low, high, wander, tuple(runs), before, after)


def join_bands(bands: Sequence[OffsetBand]) -> OffsetCurve:
    """Join all bands into one curve through their middles, with jumps between them."""
    knots = np.concatenate([part.knots for part in bands])
    low, high = (
        np.concatenate([part.low for part in bands]),
        np.concatenate([part.high for part in bands]),
    )
    wander = np.concatenate([part.wander for part in bands])
    ends = list(itertools.accumulate(len(part.knots) for part in bands))
    wander[[end - 1 for end in ends[:-1]]] = np.inf
    # Within a band slopes are far above -1. Only between two bands could the reference seem to run
    # backwards, which the running maximum prevents.
    reference_times = np.maximum.accumulate(knots + np.rint((low + high) / 2))
    return OffsetCurve(
        knots, reference_times, low, high, wander, bands[0].slopes_before, bands[-1].slopes_after
    )


def _find_certain_runs(
    points: OffsetBounds, reach: Callable[[OffsetBounds], int]
) -> Iterator[tuple[int, int]]:
    """Yield the positions (first, end) that certainly belong to each run of the shortest division.

    The division has the fewest runs that `reach` allows; the exact places where its runs meet are
    unknown. Runs made as long as possible from the left end as late as in any such division, and
    runs made from the right begin as early as in any. The positions between the two are certain. A
    run may have no certain position (first >= end).
    """
    starts = [0, *_find_cuts(points, reach)]
    ends = [
        *(len(points) - cut for cut in reversed(_find_cuts(points.reverse_time(), reach))),
        len(points),
    ]
    yield from zip(starts, ends, strict=True)


def _find_cuts(points: OffsetBounds, reach: Callable[[OffsetBounds], int]) -> list[int]:
    cuts, at = [], reach(points)
    while at < len(points):
        cuts.append(at)
        at += reach(points.where(slice(at, None)))
    return cuts


def _count_within_any_drift(points: OffsetBounds, limit: float) -> int:
    """Count the leading points that fit a curve whose slope is always within ± limit."""
    grown = points.times * limit
    above = np.where(points.upper, points.values, np.inf)
    below = np.where(points.upper, -np.inf, points.values)
    least, greatest = np.minimum.accumulate(above - grown), np.maximum.accumulate(below + grown)
    wrong = (below - grown > least) | (above + grown < greatest)
    return int(wrong.argmax()) if wrong.any() else len(points)


def _select_essential(points: OffsetBounds, limit: float) -> OffsetBounds:
    """Select the first and last point, and all points that no other point implies.

    One point implies another if the slope limit alone makes its bound at least as tight.
    """
    kept = np.zeros(len(points), dtype=np.bool_)
    kept[[0, -1]] = True
    for kind, values in ((points.upper, points.values), (~points.upper, -points.values)):
        kept[kind] |= _find_undercutting(points.times[kind] * limit, values[kind])
    return points.where(kept)


def _find_undercutting(grown: Floats, values: Floats) -> Bools:
    """Mark the upper bounds that neither an earlier nor a later one implies.

    Of equal bounds, only the first is marked.
    """
    from_left, from_right = values - grown, (values + grown)[::-1]
    before = np.minimum.accumulate(np.concatenate([[np.inf], from_left[:-1]]))
    after = np.minimum.accumulate(np.concatenate([[np.inf], from_right[:-1]]))
    return np.asarray((from_left < before) & (from_right <= after)[::-1], dtype=np.bool_)


def _bound_any_drift(knots: Floats, points: OffsetBounds, limit: float) -> tuple[Floats, Floats]:
    """Return the highest and lowest offset at every knot for any drift within its limit."""
    high, low = np.full(len(knots), np.inf), np.full(len(knots), -np.inf)
    at = np.searchsorted(knots, points.times)
    np.minimum.at(high, at[points.upper], points.values[points.upper])
    np.maximum.at(low, at[~points.upper], points.values[~points.upper])
    return _propagate_bounds(knots, high, limit), -_propagate_bounds(knots, -low, limit)


def _propagate_bounds(knots: Floats, high: Floats, limit: float) -> Floats:
    """Lower each upper bound to the highest value that the bounds at other knots allow."""
    grown = knots * limit
    from_left = np.minimum.accumulate(high - grown) + grown
    from_right = np.minimum.accumulate((high + grown)[::-1])[::-1] - grown
    return np.asarray(np.minimum(from_left, from_right), dtype=np.float64)


class _LowerHull:
    """Lower convex hull of points that are added from left to right.

    Its vertices are the points that some line touches from below. They are integers, so that
    rounding loses no vertex and both directions of time find the same ones.
    """

    def __init__(self) -> None:
        self._vertices: list[tuple[int, int]] = []

    def add(self, time: int, value: int) -> None:
        """Add a point that is not earlier than the points before it.

        Source: A. M. Andrew, Information Processing Letters 9(5), 1979.
        """
        vertices = self._vertices
        if vertices and vertices[-1][0] == time:
            if vertices[-1][1] <= value:
                return
            vertices.pop()
        while len(vertices) >= 2:
            (t0, v0), (t1, v1) = vertices[-2:]
            if (v1 - v0) * (time - t0) < (value - v0) * (t1 - t0):
                break
            vertices.pop()
        vertices.append((time, value))

    def find_steepest_slope(self, time: int, value: int) -> float:
        """Return the greatest slope of a line from any of the points to a later one.

        It is minus infinity if there are no points.
        """
        best = -math.inf
        # Along a convex hull these slopes rise and then fall, so the search can stop at the top.
        for t, v in reversed(self._vertices):
            slope = (value - v) / (time - t)
            if slope < best:
                break
            best = slope
        return best


def _fit_steady_drift(points: OffsetBounds, model: DriftModel) -> tuple[int, float, float]:
    """Count the leading points that a curve of steady drift fits, and bound its mean slope.

    An earlier upper point and a later lower point bound the mean slope from below: by the slope of
    the line through both, minus the wander. An earlier lower and a later upper point bound it from
    above in the same way. By Helly's theorem in one dimension, no other bounds exist than these of
    pairs.

    Returns:
        The number of points, and the lowest and highest possible mean slope.
    """
    lowers, uppers = _LowerHull(), _LowerHull()
    low, high = model.wander - model.limit, model.limit - model.wander
    same_instant: list[tuple[int, int, bool]] = []
    rows = zip(
        points.times.astype(np.int64).tolist(),
        points.values.astype(np.int64).tolist(),
        points.upper,
        strict=True,
    )
    for i, (time, value, upper) in enumerate(rows):
        if same_instant and same_instant[0][0] < time:
            # Points of one instant say nothing about the slope between them, so they enter the
            # hulls together when time has moved on.
            for t, v, is_upper in same_instant:
                uppers.add(t, v) if is_upper else lowers.add(t, -v)
            same_instant.clear()
        least = low if upper else max(low, uppers.find_steepest_slope(time, value) - model.wander)
        greatest = (
            min(high, model.wander - lowers.find_steepest_slope(time, -value)) if upper else high
        )
        if least > greatest:
            return i, low, high
        low, high = least, greatest
        same_instant.append((time, value, upper))
    return len(points), low, high


def _compute_upper_bound(
    points: OffsetBounds, at: Floats, low: float, high: float, model: DriftModel
) -> Floats:
    """Return the highest possible offset at times `at` for a curve of steady drift.

    The curve is below all upper points, and its mean slope is between `low` and `high`.
    """
    upper = points.where(points.upper)
    highest = np.full(len(at), np.inf)
    if not len(upper):
        return highest
    for start in range(0, len(at), _BLOCK_POINTS):
        block = at[start : start + _BLOCK_POINTS]
        # Distant points add little to the information in the slope's range. Leaving some out can
        # only widen the bound, so the result stays correct.
        middle = int(np.searchsorted(upper.times, block[len(block) // 2]))
        near = upper.where(slice(max(middle - _WINDOW_POINTS, 0), middle + _WINDOW_POINTS))
        run = block[:, None] - near.times
        highest[start : start + _BLOCK_POINTS] = _maximize_lower_envelope(
            run, near.values + model.wander * np.abs(run), low, high
        )
    return highest


def _maximize_lower_envelope(slopes: Floats, starts: Floats, low: float, high: float) -> Floats:
    """Return, for each row, the maximum over b in [low, high] of the lowest line.

    The lines of a row are `starts + slopes b`. The method is Kelley's cutting planes (1960): a
    rising and a falling line bound the maximum by the value at which they cross. While another
    line is lower there, it replaces one of the two. Every intermediate value is a valid bound, so
    an early end would be safe.
    """
    rows = np.arange(len(slopes))
    rising = np.argmin(starts + slopes * low, axis=1)
    falling = np.argmin(starts + slopes * high, axis=1)
    best = np.full(len(slopes), np.inf)
    done = np.zeros(len(slopes), dtype=np.bool_)
    for _ in range(slopes.shape[1] + 2):
        a, c = slopes[rows, rising], slopes[rows, falling]
        begin, end = starts[rows, rising], starts[rows, falling]
        between = (a > 0) & (c < 0)
        crossing = (end - begin) / np.where(between, a - c, 1.0)
        b = np.clip(np.where(between, crossing, np.where(a > 0, high, low)), low, high)
        bound = np.minimum(begin + a * b, end + c * b)
        lines = starts + slopes * b[:, None]
        least = np.argmin(lines, axis=1)
        value, slope = lines[rows, least], slopes[rows, least]
        best = np.where(done, best, np.where(slope == 0, value, bound))
        done |= (slope == 0) | (value >= bound - _CONVERGED_NS)
        if done.all():
            break
        rising = np.where(~done & (slope > 0), least, rising)
        falling = np.where(~done & (slope < 0), least, falling)
    return best
