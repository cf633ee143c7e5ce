"""The fast search for change points, against the definition computed step by step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.detection.change_points import find_best_segments, find_change_points
from laggard.analysis.tables.columns import FloatArray


def compute_cost(values: FloatArray, starts: list[int], penalty: float) -> float:
    """Return the squared deviations of the segments from their means, with the penalties."""
    parts = np.split(values, starts[1:])
    return sum(float(((part - part.mean()) ** 2).sum()) + penalty for part in parts)


def find_least_cost(values: FloatArray, penalty: float, least: int) -> float:
    """Return the least cost of all segmentations, by trying every last segment of every prefix."""
    costs = [0.0] + [math.inf] * len(values)
    for end in range(1, len(values) + 1):
        begins = range(end - least + 1) if end >= least else [0]
        for begin in begins:
            part = values[begin:end]
            cost = costs[begin] + float(((part - part.mean()) ** 2).sum()) + penalty
            # A first segment may be short only if the whole series is.
            if begin == 0 or begin >= least:
                costs[end] = min(costs[end], cost)
    return costs[-1]


levels = st.sampled_from([0.0, 0.0, 1.0, 2.5, -4.0, 30.0])


@st.composite
def series(draw: st.DrawFn) -> FloatArray:
    """Draw a series of a few levels with noise, trend or ties."""
    parts = [
        np.full(draw(st.integers(1, 25)), draw(levels)) for _ in range(draw(st.integers(1, 5)))
    ]
    values = np.concatenate(parts)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    noise = rng.standard_normal(len(values)) * draw(st.sampled_from([0.0, 0.3, 1.0]))
    noise = np.rint(noise) if draw(st.booleans()) else noise
    return values + noise + draw(st.sampled_from([0.0, 0.02])) * np.arange(len(values))


@given(
    st.lists(series(), min_size=1, max_size=3),
    st.integers(1, 12),
    st.sampled_from([0.5, 4.0, 20.0]),
)
@settings(deadline=None, max_examples=60)
def test_no_segmentation_costs_less(group: list[FloatArray], least: int, penalty: float) -> None:
    penalties = [penalty * (1 + number) for number in range(len(group))]
    found = find_best_segments(group, penalties, least)
    for values, starts, own in zip(group, found, penalties, strict=True):
        lengths = np.diff([*starts, len(values)])
        assert starts[0] == 0
        assert len(starts) == 1 or lengths.min() >= least
        best = find_least_cost(values, own, least)
        assert compute_cost(values, starts, own) == pytest.approx(best, rel=1e-9, abs=1e-9)


@given(st.lists(series(), max_size=4))
@settings(deadline=None, max_examples=30)
def test_a_series_has_the_same_change_points_alone_and_among_others(
    group: list[FloatArray],
) -> None:
    alone = [points for values in group for points in find_change_points([values], 10)]
    assert list(find_change_points(group, 10)) == alone


def test_long_series_have_changes_at_the_borders_of_chunks_too() -> None:
    values = np.random.default_rng(0).standard_normal(9000)
    values[5000:5100] += 8.0
    steady, changing = find_change_points([values[:4000], values], 10)
    assert steady == []
    assert changing == [4000, 5000, 5100, 8000]


def test_the_penalty_of_a_change_grows_with_the_series() -> None:
    values = np.concatenate([np.zeros(30), np.full(30, 1.2)])
    short, long = find_change_points([values, np.append(values, np.zeros(3000))], 10)
    assert short == [30]
    assert long == []
