"""Beliefs, choices and useful measurements, held to theory and to brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.cost_model.arrays import FloatArray
from laggard.predict.recommendation.beliefs import Beliefs, CandidateTraits, ErrorSizes
from laggard.predict.recommendation.choice import (
    Budget,
    choose,
    find_useful_measurement,
)

SPEEDS = np.log(np.geomspace(0.01, 100.0, 12))


def describe(
    seconds: list[float], *, scales: bool = True, machines: list[float] | None = None
) -> CandidateTraits:
    """Candidates of one family, a type each, whose time is inverse to their speed, or fixed."""
    count = len(seconds)
    slope = -1.0 if scales else 0.0
    return CandidateTraits(
        speeds=SPEEDS,
        seconds=np.log(seconds)[:, None] + slope * SPEEDS,
        own_speeds=np.zeros(count),
        families=[0] * count,
        instances=list(range(count)),
        cores=np.ones(count),
        machines=np.array(machines or [1.0] * count),
    )


def covariance(sizes: ErrorSizes, count: int) -> FloatArray:
    """Covariance of the logarithms of the times of `describe`."""
    own = sizes.instance**2 + sizes.candidate**2
    return np.full((count, count), sizes.shared**2 + sizes.family**2) + own * np.eye(count)


def test_before_a_measurement_the_spread_is_that_of_all_errors() -> None:
    beliefs = Beliefs.draw(describe([100.0, 300.0]))
    expected = covariance(ErrorSizes(), 2)
    assert beliefs.worlds.mean(axis=0) == pytest.approx(np.log([100.0, 300.0]), abs=0.05)
    assert np.cov(beliefs.worlds.T) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.6])
def test_a_measurement_moves_the_others_as_a_gaussian_process_does(factor: float) -> None:
    sizes = ErrorSizes()
    beliefs = Beliefs.draw(describe([100.0, 300.0])).with_measurements({0: 100.0 * factor})
    whole = covariance(sizes, 2)
    gain = whole[1, 0] / (whole[0, 0] + sizes.measured**2)
    assert beliefs.worlds[:, 1].mean() == pytest.approx(
        math.log(300) + gain * math.log(factor), abs=0.06
    )
    variance = whole[1, 1] - gain * whole[0, 1]
    assert beliefs.worlds[:, 1].std() == pytest.approx(math.sqrt(variance), rel=0.15)
    assert beliefs.worlds[:, 0].mean() == pytest.approx(math.log(100 * factor), abs=0.02)
    assert beliefs.worlds[:, 0].std() == pytest.approx(sizes.measured, rel=0.4)


def test_a_training_that_waits_for_its_links_does_not_depend_on_the_machines() -> None:
    beliefs = Beliefs.draw(describe([100.0, 300.0], scales=False))
    assert beliefs.worlds.std(axis=0) == pytest.approx(ErrorSizes().candidate, rel=0.1)
    moved = beliefs.with_measurements({0: 130.0})
    assert moved.worlds[:, 1].mean() == pytest.approx(math.log(300.0), abs=0.02)


def test_a_measurement_that_no_world_expects_is_believed() -> None:
    beliefs = Beliefs.draw(describe([100.0, 300.0])).with_measurements({0: 100_000.0})
    assert beliefs.worlds[:, 0].mean() == pytest.approx(math.log(100_000.0), abs=0.3)
    assert beliefs.worlds[:, 1].mean() > math.log(600)


def test_an_earlier_measurement_stays_known_after_a_later_one() -> None:
    beliefs = Beliefs.draw(describe([100.0, 300.0, 200.0])).with_measurements({0: 130.0})
    later = beliefs.with_measurements({1: 350.0})
    assert later.worlds[:, 0].mean() == pytest.approx(math.log(130.0), abs=0.02)
    assert later.worlds[:, 0].std() < 0.04


SURE = ErrorSizes(0.0, 0.0, 0.0, 0.0, 0.0, 1e-9, 1e-9)
"""Errors so small that forecasts are the truth."""


@given(
    st.lists(st.tuples(st.floats(1, 1e4), st.floats(0.01, 10)), min_size=1, max_size=8),
    st.floats(1, 1e4),
    st.floats(1, 1e5),
)
def test_without_errors_the_cheapest_within_the_budget_is_chosen(
    candidates: list[tuple[float, float]], within_s: float, cost_below: float
) -> None:
    seconds, prices = (list(each) for each in zip(*candidates, strict=True))
    beliefs = Beliefs.draw(describe(seconds), SURE)
    found = choose(beliefs, np.array(prices), Budget(within_s, cost_below))
    costs = [one * price for one, price in candidates]
    margins = [
        abs(value / limit - 1)
        for own, limit in ((seconds, within_s), (costs, cost_below))
        for value in own
    ]
    if min(margins) < 1e-6:
        return
    feasible = [
        cost
        for time_s, cost in zip(seconds, costs, strict=True)
        if time_s <= within_s and cost <= cost_below
    ]
    if not feasible:
        assert found.candidate is None
        return
    assert found.candidate is not None
    assert costs[found.candidate] == pytest.approx(min(feasible), rel=1e-6)
    assert found.loss == pytest.approx(0, abs=1e-6)


def test_a_cheap_candidate_that_is_probably_too_slow_is_not_chosen() -> None:
    beliefs = Beliefs.draw(describe([100.0, 20.0]))
    found = choose(beliefs, np.array([1.0, 7.0]), Budget(60.0))
    assert found.candidate == 1
    assert found.in_budget[0] < 0.2
    assert found.in_budget[1] > 0.9


def test_many_unlikely_candidates_are_no_answer() -> None:
    # Each is too slow but for a lucky error of its own, and one of them is lucky nearly always.
    sizes = ErrorSizes(0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.02)
    beliefs = Beliefs.draw(describe([112.0] * 60), sizes)
    found = choose(beliefs, np.ones(60), Budget(100.0))
    assert found.in_budget.max() < 0.2
    assert found.cheapest.sum() > 0.99
    assert found.candidate is None


def test_probabilities_are_those_of_the_worlds() -> None:
    beliefs = Beliefs.draw(describe([100.0, 110.0, 90.0]))
    prices, budget = np.array([1.0, 1.1, 0.9]), Budget(100.0, 120.0)
    found = choose(beliefs, prices, budget)
    seconds = np.exp(beliefs.worlds)
    within = (seconds <= budget.within_s) & (seconds * prices <= budget.cost_below)
    assert found.in_budget == pytest.approx(within.mean(axis=0))
    any_within = within.any(axis=1).mean()
    assert found.cheapest.sum() == pytest.approx(any_within)


def test_nothing_is_measured_where_nothing_can_change() -> None:
    beliefs = Beliefs.draw(describe([100.0, 300.0]))
    sure = Beliefs.draw(describe([100.0, 300.0]), SURE)
    assert find_useful_measurement(sure, np.ones(2), Budget(1e9)) is None
    assert find_useful_measurement(beliefs, np.ones(2), Budget(1e-3)) is None


def test_the_doubtful_candidate_is_measured_and_none_twice() -> None:
    # The cheap one is within the budget with about even odds, and the dear one surely is.
    beliefs = Beliefs.draw(describe([100.0, 5.0]))
    prices, budget = np.array([1.0, 40.0]), Budget(100.0)
    wanted = find_useful_measurement(beliefs, prices, budget)
    assert wanted == 0
    after = beliefs.with_measurements({0: 101.0})
    assert find_useful_measurement(after, prices, budget, [0, 1]) is None


def test_a_measurement_never_raises_the_expected_loss() -> None:
    # The mean over outcomes of the loss after a measurement cannot exceed the loss before it.
    beliefs = Beliefs.draw(describe([100.0, 90.0, 120.0, 60.0]))
    prices, budget = np.array([1.0, 1.2, 0.8, 2.0]), Budget(110.0)
    before = choose(beliefs, prices, budget).loss
    for candidate in range(4):
        outcomes = np.exp(beliefs.worlds[::64, candidate])
        after = [
            choose(beliefs.with_measurements({candidate: float(each)}), prices, budget).loss
            for each in outcomes
        ]
        assert np.mean(after) <= before + 0.02
