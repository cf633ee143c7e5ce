"""The test on blocks: its level and its power are those that it states."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from laggard.analysis.reproduction.block_comparison import (
    BlockComparison,
    compare_blocks,
    compare_logarithms,
)


def _compare(shift: float, seed: int) -> BlockComparison:
    """Compare two series of 400 noisy steps with a common schedule of slow ones."""
    random = np.random.default_rng(seed)
    schedule = np.where(np.arange(400) % 150 < 40, 3.0, 1.0)
    first, second = (schedule * random.lognormal(0, 0.2, 400) for _ in range(2))
    compared = compare_blocks(first, second * (1 + shift))
    assert compared is not None
    return compared


def test_equal_runs_differ_in_one_of_twenty_tests() -> None:
    found = [not each.low <= 1 <= each.high for each in (_compare(0, i) for i in range(400))]
    # Three standard errors of a share of 5 % over 400 tests.
    assert abs(np.mean(found) - 0.05) < 3 * math.sqrt(0.05 * 0.95 / 400)


def test_a_detectable_difference_is_found_four_times_out_of_five() -> None:
    detectable = float(np.mean([_compare(0, i).detectable for i in range(100)]))
    found = [each.low > 1 for each in (_compare(detectable, 1000 + i) for i in range(400))]
    assert 0.7 < np.mean(found) < 0.9


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12).filter(lambda each: np.ptp(each) > 1e-6))
def test_the_interval_is_that_of_a_paired_t_test(differences: list[float]) -> None:
    compared = compare_logarithms(np.array(differences))
    interval = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert math.log(compared.low) == pytest.approx(interval.low, abs=1e-9)
    assert math.log(compared.high) == pytest.approx(interval.high, abs=1e-9)


@pytest.mark.parametrize(
    ("first", "second"),
    [([1.0] * 3, [1.0] * 9), ([], []), ([0.0] * 9, [1.0] * 9), ([math.nan] * 9, [1.0] * 9)],
)
def test_too_few_or_impossible_values_are_not_compared(
    first: list[float], second: list[float]
) -> None:
    assert compare_blocks(np.array(first), np.array(second)) is None
