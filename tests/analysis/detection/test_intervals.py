"""Slow intervals in single series, against what was put in."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.detection.intervals import (
    Segment,
    estimate_shared_drift,
    find_baseline_level,
    find_slow_intervals,
    running_median,
    segment_series,
)
from laggard.analysis.detection.reference import fit_line
from laggard.analysis.tables.columns import FloatArray, IntArray


def found(values: FloatArray) -> tuple[Segment, ...]:
    levels = segment_series(values)
    return find_slow_intervals(values, levels, find_baseline_level(levels))


def noise(seed: int, steps: int = 500, sigma: float = 0.05) -> FloatArray:
    return sigma * np.random.default_rng(seed).standard_normal(steps)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("length", "ratio"), [(10, 1.5), (15, 1.3), (60, 1.3), (60, 1.2), (200, 2.0)]
)
def test_a_slow_stretch_is_found_where_it_is(seed: int, length: int, ratio: float) -> None:
    values = noise(seed)
    values[150 : 150 + length] += math.log(ratio)
    (part,) = found(values)
    assert part.first == pytest.approx(150, abs=3)
    assert part.last == pytest.approx(149 + length, abs=3)
    assert math.exp(part.level) == pytest.approx(ratio, rel=0.05)


@pytest.mark.parametrize(("length", "ratio"), [(3, 3.0), (8, 2.0), (100, 1.06)])
def test_short_or_slight_is_not_slow(length: int, ratio: float) -> None:
    for seed in range(10):
        values = noise(seed)
        values[200 : 200 + length] += math.log(ratio)
        assert all(part.length >= 10 and part.level >= math.log(1.1) for part in found(values))
        assert len(found(values)) <= (1 if length == 8 else 0)


def test_heavy_tails_and_drift_are_not_slow() -> None:
    wrong = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        values = 0.05 * rng.standard_t(2.5, 600) + 0.04 * np.sin(np.linspace(0, 9, 600))
        values[rng.random(600) < 0.02] += math.log(2.0)
        wrong += len(found(values))
    assert wrong <= 2


def test_slow_at_the_start_or_the_end_is_found() -> None:
    for place in (slice(0, 80), slice(420, 500)):
        values = noise(1)
        values[place] += 0.4
        (part,) = found(values)
        assert (part.first, part.last) == pytest.approx((place.start, place.stop - 1), abs=2)


def test_slow_most_of_the_run_is_still_slow() -> None:
    values = noise(2)
    values[200:] += 0.5
    (part,) = found(values)
    assert part.first == pytest.approx(200, abs=2)


def test_a_known_normal_helps_where_little_of_the_run_was() -> None:
    values = noise(3)
    values[80:] += 0.5
    levels = segment_series(values)
    assert find_baseline_level(levels) == pytest.approx(0.5, abs=0.05)
    assert find_baseline_level(levels, at_normal=0.0) == pytest.approx(0.0, abs=0.05)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=80))
@settings(deadline=None, max_examples=100)
def test_segments_cover_any_series(numbers: list[float]) -> None:
    values = np.array(numbers)
    levels = segment_series(values)
    covered = [step for part in levels.segments for step in range(part.first, part.last + 1)]
    assert covered == list(range(len(values)))
    assert all(part.length >= 10 for part in find_slow_intervals(values, levels, 0.0))


def test_long_series_are_cut_in_pieces_without_new_changes() -> None:
    values = noise(4, 9000)
    values[5000:5100] += 0.4
    (part,) = found(values)
    assert (part.first, part.last) == pytest.approx((5000, 5099), abs=2)


def test_what_slows_three_quarters_of_the_ranks_is_the_machine() -> None:
    logs = 0.03 * np.random.default_rng(0).standard_normal((400, 8))
    logs[100:200, :7] += 0.4
    assert estimate_shared_drift(logs)[110:190].mean() == pytest.approx(0.4, abs=0.05)
    logs = 0.03 * np.random.default_rng(0).standard_normal((400, 8))
    logs[100:200, :4] += 0.4
    assert abs(estimate_shared_drift(logs)).max() < 0.1
    assert not estimate_shared_drift(logs[:, :1]).any()


def test_ranks_slow_for_most_of_the_run_do_not_speed_up_in_the_rest() -> None:
    logs = 0.03 * np.random.default_rng(1).standard_normal((400, 8))
    logs[100:330, :5] += math.log(4.0)
    logs -= np.median(logs, axis=0)
    assert abs(estimate_shared_drift(logs)).max() < 0.1


def test_the_quartile_of_noisy_ranks_stays_when_most_are_slow() -> None:
    logs = 0.15 * np.random.default_rng(2).standard_normal((400, 64))
    logs[100:200, :39] += math.log(2.0)
    drift = estimate_shared_drift(logs)
    assert (
        abs(drift[110:190].mean() - drift[210:].mean()) < 0.08
    )  # A quartile of unsmoothed ranks moves by 0.16.


def test_the_first_value_is_no_median_by_itself() -> None:
    values = np.zeros(50)
    values[[0, -1]] = 9.0
    assert not running_median(values).any()
    assert running_median(np.array([4.0])).tolist() == [4.0]


def test_what_is_normal_for_others_makes_nobody_slower() -> None:
    """Half of the run at one level, half at another 8 % above: both are near the fleet's, and the
    faster one is normal."""
    values = 0.01 * np.random.default_rng(3).standard_normal(400)
    values[200:] += 0.18
    levels = segment_series(values)
    assert find_baseline_level(levels, at_normal=0.1) == pytest.approx(0.0, abs=0.01)


def test_running_median_forgets_spikes_and_keeps_steps() -> None:
    values = np.zeros(50)
    values[20] = 9.0
    assert not running_median(values).any()
    values[30:] = 1.0
    assert np.array_equal(running_median(values)[[25, 29, 30, 35]], [0.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("samples", "seconds", "expected"),
    [
        (np.array([16, 16, 4, 4]), np.array([1.8, 1.8, 0.6, 0.6]), (0.2, 0.1)),
        (np.array([16, 16, 16]), np.array([1.0, 5.0, 1.2]), (1.2, 0.0)),
        (np.array([16, 16, 4]), np.array([1.0, 1.0, 2.0]), (1.0, 0.0)),
        (np.array([], dtype=np.int64), np.array([]), (0.0, 0.0)),
    ],
)
def test_a_step_costs_a_plus_b_n(
    samples: IntArray, seconds: FloatArray, expected: tuple[float, float]
) -> None:
    assert fit_line(samples, seconds) == pytest.approx(expected)
