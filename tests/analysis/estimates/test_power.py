"""Power against published tables, SciPy's noncentral t-distribution, and simulated tests."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy import stats

from laggard.analysis.estimates.estimate import Key
from laggard.analysis.estimates.power import (
    MOST_REPEATS,
    compute_paired_power,
    compute_welch_power,
    estimate_power,
    find_repeats,
)


def keyed(values: np.ndarray | list[float], offset: int = 0) -> dict[Key, float]:
    return {(number + offset, 0): float(value) for number, value in enumerate(values)}


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_pairs_for_80_percent_are_those_of_the_tables(effect: float, pairs: int) -> None:
    assert find_repeats(lambda n: compute_paired_power(effect, 1.0, n)) == pairs


@pytest.mark.parametrize(("effect", "repeats"), [(0.2, 394), (0.5, 64), (0.8, 26)])
def test_repeats_of_two_samples_are_those_of_the_tables(effect: float, repeats: int) -> None:
    """J. Cohen 1988, table 2.4.1, at a two-sided 5 % and a power of 80 %."""
    assert find_repeats(lambda n: compute_welch_power(effect, (1.0, 1.0), n)) == repeats


@pytest.mark.parametrize("repeats", [2, 3, 5, 20])
@pytest.mark.parametrize("effect", [0.1, 1.0, 2.5])
def test_power_is_that_of_the_noncentral_t(effect: float, repeats: int) -> None:
    shift, critical = effect * repeats**0.5, stats.t.ppf(0.975, repeats - 1)
    above = stats.nct.sf(critical, repeats - 1, shift)
    expected = above + stats.nct.cdf(-critical, repeats - 1, shift)
    assert compute_paired_power(effect, 1.0, repeats) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("repeats", [4, 10])
def test_simulated_tests_find_the_difference_as_often(repeats: int) -> None:
    generator = np.random.default_rng(repeats)
    first = generator.normal(0.0, 1.0, (4000, repeats))
    other = generator.normal(1.2, 2.0, (4000, repeats))
    welch = stats.ttest_ind(first, other, axis=1, equal_var=False).pvalue < 0.05
    assert compute_welch_power(1.2, (1.0, 2.0), repeats) == pytest.approx(welch.mean(), abs=0.025)
    paired = stats.ttest_1samp(other, 0.0, axis=1).pvalue < 0.05
    assert compute_paired_power(1.2, 2.0, repeats) == pytest.approx(paired.mean(), abs=0.025)


def test_power_increases_with_the_repeats_up_to_certainty() -> None:
    powers = [compute_paired_power(0.7, 1.0, n) for n in (2, 3, 5, 10, 30, 100, 10_000)]
    assert powers == sorted(powers)
    assert powers[-1] == pytest.approx(1.0)


def test_equal_means_are_never_told_apart() -> None:
    power = estimate_power(keyed([1.0, 2.0]), keyed([2.0, 1.0]))
    assert power is not None
    assert (power.power, power.repeats, power.is_paired) == (pytest.approx(0.05), None, True)
    assert find_repeats(partial(compute_paired_power, 1e-6, 1.0)) is None
    assert compute_paired_power(1e-6, 1.0, MOST_REPEATS) < 0.06


def test_a_difference_without_spread_is_told_by_two_repeats() -> None:
    power = estimate_power(keyed([1.0, 1.0, 1.0]), keyed([2.0, 2.0, 2.0], 10))
    assert power is not None
    assert (power.power, power.repeats, power.is_paired) == (1.0, 2, False)


def test_one_repeat_has_no_power() -> None:
    assert estimate_power(keyed([1.0]), keyed([2.0])) is None
