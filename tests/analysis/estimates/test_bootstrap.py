"""Bootstrap intervals: their coverage, pairing, and independence of the order of values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.estimates import bootstrap
from laggard.analysis.estimates.bootstrap import MIN_BOOTSTRAP_REPEATS, estimate_effect
from laggard.analysis.estimates.estimate import Key, estimate_difference

TRIALS = 300


def keyed(values: np.ndarray | list[float], offset: int = 0) -> dict[Key, float]:
    return {(number + offset, 0): float(value) for number, value in enumerate(values)}


def measure_coverage(
    generator: np.random.Generator, repeats: int, distribution: str, *, paired: bool
) -> float:
    """Share of simulated campaigns whose interval contains the true difference, 1."""
    found = 0
    for trial in range(TRIALS):
        luck, first, other = (
            generator.standard_normal((3, repeats))
            if distribution == "normal"
            else generator.exponential(1.0, (3, repeats))
        )
        if not paired:
            luck *= 0.0
        effect = estimate_effect(
            keyed(luck + first), keyed(luck + other + 1.0, 0 if paired else 1000), seed=trial
        )
        assert effect.method == ("paired bootstrap" if paired else "two-sample bootstrap")
        assert effect.value.low is not None
        assert effect.value.high is not None
        found += effect.value.low <= 1.0 <= effect.value.high
    return found / TRIALS


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("distribution", ["normal", "exponential"])
@pytest.mark.parametrize("repeats", [MIN_BOOTSTRAP_REPEATS, 12])
def test_intervals_contain_the_truth_about_as_often_as_they_say(
    repeats: int, distribution: str, paired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 999)
    coverage = measure_coverage(np.random.default_rng(5), repeats, distribution, paired=paired)
    # Of 300 trials at 95 %, three standard deviations are 4 points; small samples cost some more.
    assert 0.89 <= coverage <= 0.99


def test_an_interval_of_a_skewed_mean_is_not_far_too_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Differences that are skewed themselves, unlike those of equal distributions."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 999)
    generator = np.random.default_rng(6)
    found = 0
    for trial in range(TRIALS):
        sample = generator.exponential(1.0, 20)
        value = estimate_effect(keyed(np.zeros(20)), keyed(sample), seed=trial).value
        assert value.low is not None
        assert value.high is not None
        found += value.low <= 1.0 <= value.high
    assert 0.88 <= found / TRIALS <= 0.99


@pytest.mark.parametrize("repeats", [4, 10])
def test_pairs_that_correlate_have_narrower_intervals(repeats: int) -> None:
    generator = np.random.default_rng(7)
    luck = generator.normal(0.0, 1.0, repeats)
    first, other = luck, luck + 0.5 + generator.normal(0.0, 0.1, repeats)
    paired = estimate_effect(keyed(first), keyed(other)).value
    apart = estimate_effect(keyed(first), keyed(other, 1000)).value
    assert paired.mean == pytest.approx(apart.mean)
    assert None not in (paired.low, paired.high, apart.low, apart.high)
    assert paired.high - paired.low < 0.5 * (apart.high - apart.low)  # type: ignore[operator]


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=9),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@settings(max_examples=25)
def test_the_order_of_repeats_does_not_matter(
    pairs: list[tuple[float, float]], paired: bool, random: object
) -> None:
    first = keyed([one for one, _ in pairs])
    other = keyed([two for _, two in pairs], 0 if paired else 100)
    shuffled = list(other.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert estimate_effect(first, other) == estimate_effect(
        dict(reversed(first.items())), dict(shuffled)
    )


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=9))
@settings(max_examples=25)
def test_a_difference_of_shares_stays_possible(pairs: list[tuple[float, float]]) -> None:
    value = estimate_effect(
        keyed([one for one, _ in pairs]), keyed([two for _, two in pairs]), 1.0
    ).value
    assert -1.0 <= value.mean <= 1.0
    if value.low is not None and value.high is not None:
        assert -1.0 <= value.low <= value.high <= 1.0


def test_few_repeats_have_students_interval_and_one_has_none() -> None:
    first, other = keyed([1.0, 2.0, 4.0]), keyed([2.0, 5.0, 6.0])
    effect = estimate_effect(first, other)
    assert (effect.method, effect.repeats) == ("paired Student", 3)
    assert effect.value == estimate_difference(first, other)
    apart = estimate_effect(first, keyed([2.0, 5.0], 10))
    assert (apart.method, apart.repeats) == ("Welch", 2)
    alone = estimate_effect(keyed([1.0]), keyed([3.0]))
    assert (alone.method, alone.value.mean, alone.value.low) == ("none", 2.0, None)


def test_equal_values_have_an_interval_of_one_point() -> None:
    effect = estimate_effect(keyed([1.0] * 8), keyed([3.0] * 8))
    assert (effect.value.low, effect.value.high) == (2.0, 2.0)


def test_a_repeat_whose_partner_failed_is_ignored_if_most_have_partners() -> None:
    first, other = keyed([1.0, 2.0, 3.0, 4.0]), keyed([2.0, 3.0, 4.0])
    effect = estimate_effect(first, other)
    assert (effect.repeats, effect.value.mean, effect.value.high) == (3, 1.0, 1.0)
