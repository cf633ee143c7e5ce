"""Probability of the best variant: what it adds up to, and how sure it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from laggard.analysis.estimates.best_variant import estimate_best
from laggard.analysis.estimates.estimate import Key

VALUES = st.lists(st.floats(-10, 10), min_size=2, max_size=6)


def keyed(values: np.ndarray | list[float], offset: int = 0) -> dict[Key, float]:
    return {(number + offset, 0): float(value) for number, value in enumerate(values)}


@given(st.lists(VALUES, min_size=1, max_size=4), st.booleans())
@settings(max_examples=15)
def test_probabilities_add_up_to_one(variants: list[list[float]], apart: bool) -> None:
    shares = estimate_best([keyed(each, 100 * n * apart) for n, each in enumerate(variants)])
    assert shares is not None
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) >= 0.0


def test_the_order_of_variants_and_repeats_does_not_matter() -> None:
    generator = np.random.default_rng(1)
    variants = [keyed(generator.normal(n / 4, 1.0, 5)) for n in range(3)]
    shares = estimate_best(variants)
    turned = estimate_best([dict(reversed(each.items())) for each in variants])
    moved = estimate_best(variants[::-1])
    assert shares == turned
    assert shares is not None
    assert moved is not None
    assert moved[::-1] == pytest.approx(shares)


def test_equal_variants_share_the_victory() -> None:
    same = keyed([3.0, 3.0, 3.0])
    assert estimate_best([same, same, same]) == pytest.approx((1 / 3, 1 / 3, 1 / 3))


@pytest.mark.parametrize("repeats", [2, 3, 8])
def test_two_variants_have_the_probability_of_the_paired_test(repeats: int) -> None:
    generator = np.random.default_rng(repeats)
    first, other = generator.normal(0.0, 1.0, repeats), generator.normal(0.4, 1.0, repeats)
    shares = estimate_best([keyed(first), keyed(other)])
    assert shares is not None
    test = stats.ttest_rel(first, other, alternative="less")
    assert shares[1] == pytest.approx(test.pvalue, abs=0.015)


def test_three_repeats_of_equal_variants_are_rarely_sure() -> None:
    """The probability is calibrated: above 95 % in 5 % of cases, not in a quarter of them."""
    generator = np.random.default_rng(3)
    sure = 0
    for trial in range(200):
        first, other = generator.normal(0.0, 1.0, (2, 3))
        shares = estimate_best([keyed(first), keyed(other)], seed=trial)
        assert shares is not None
        sure += shares[0] > 0.95
    assert sure / 200 <= 0.1


def test_one_repeat_tells_nothing() -> None:
    assert estimate_best([keyed([1.0]), keyed([2.0, 3.0])]) is None
    assert estimate_best([]) is None
