"""What holds for every selection, whatever clients do; and the exact search of cohorts."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import chisquare

from laggard.core.selection.failure_pauses import LONGEST_PAUSE
from laggard.core.selection.fairness import compute_jain_index
from laggard.core.selection.oort import OortSelector
from laggard.core.selection.participation_rates import compute_participation_rates, limit_rates
from laggard.core.selection.selector import (
    ClientCandidate,
    ClientResult,
    ClientSelector,
    Outcome,
    compute_statistical_utility,
)
from laggard.core.selection.simple_selection import FastestSelector, RandomSelector
from laggard.core.selection.utility_aware import UtilityAwareParameters, UtilityAwareSelector
from laggard.core.selection.weighted_draw import draw_weighted

LEAST_P = 1e-4
SELECTORS: dict[str, Callable[[], ClientSelector]] = {
    "random": lambda: RandomSelector(1),
    "fastest": FastestSelector,
    "oort": lambda: OortSelector(1),
    "utility_aware": UtilityAwareSelector,
}
of_each = pytest.mark.parametrize("name", SELECTORS)
OUTCOMES: Sequence[tuple[Outcome, float | None]] = (
    ("accepted", 4.0),
    ("accepted", math.nan),
    ("accepted", math.inf),
    ("late", None),
    ("failed", None),
)


@of_each
@given(data=st.data())
def test_a_selection_has_different_eligible_clients_and_says_how_many_are_missing(
    name: str, data: st.DataObject
) -> None:
    selector = SELECTORS[name]()
    for _ in range(data.draw(st.integers(1, 8))):
        candidates = [
            ClientCandidate(
                client,
                data.draw(st.sampled_from([0, 1, 50])),
                data.draw(st.sampled_from([0.5, 3.0, 1e9, math.inf, math.nan])),
                data.draw(st.sampled_from([None, 0.0, 2.0])),
            )
            for client in data.draw(st.sets(st.integers(0, 9)))
        ]
        count = data.draw(st.integers(1, 12))
        selection = selector.select(candidates, count)
        eligible = {each.client for each in candidates if each.is_eligible}
        assert len(set(selection.clients)) == len(selection.clients) == count - selection.missing
        assert set(selection.clients) <= eligible
        assert all(choice.reason for choice in selection.choices)
        # A pause keeps some away, but never all.
        assert bool(selection.clients) == bool(eligible)
        for client in selection.clients:
            outcome, utility = data.draw(st.sampled_from(OUTCOMES))
            selector.report(ClientResult(client, outcome, 1.0, utility))


@of_each
@pytest.mark.parametrize("utility", [math.nan, math.inf, -1.0])
def test_a_client_that_never_answers_sensibly_is_not_chosen_for_ever(
    name: str, utility: float
) -> None:
    """Its pauses double up to a bound, so that it has another chance."""
    selector = SELECTORS[name]()
    candidates = [ClientCandidate(client, 10, 1.0 + client) for client in range(4)]
    chosen = 0
    for _ in range(400):
        for client in selector.select(candidates, 2).clients:
            chosen += client == 0
            sensible = 5.0 if client else utility
            selector.report(ClientResult(client, "accepted", 1.0, sensible))
    assert 1 <= chosen <= 400 / LONGEST_PAUSE + 7


@of_each
def test_the_same_seed_and_results_give_the_same_selection(name: str) -> None:
    chosen = []
    for _ in range(2):
        selector = SELECTORS[name]()
        rounds = []
        for _ in range(30):
            selection = selector.select(
                [ClientCandidate(c, 5 + c, 1.0 + c % 3) for c in range(12)], 3
            )
            rounds.append(selection)
            for client in selection.clients:
                selector.report(ClientResult(client, "accepted", 1.0 + client % 3, 9.0 - client))
        chosen.append(rounds)
    assert chosen[0] == chosen[1]


def test_the_fastest_are_those_with_the_shortest_rounds() -> None:
    candidates = [ClientCandidate(client, 10, abs(client - 5.0) + 1) for client in range(10)]
    assert set(FastestSelector().select(candidates, 3).clients) == {4, 5, 6}


def test_random_clients_have_equal_chances() -> None:
    selector, drawn = RandomSelector(3), Counter[int]()
    for _ in range(3000):
        drawn.update(selector.select([ClientCandidate(c, 1, 1.0) for c in range(8)], 3).clients)
    assert chisquare([drawn[client] for client in range(8)]).pvalue > LEAST_P


def test_weighted_draws_are_one_after_another() -> None:
    """The probability of each pair is known exactly."""
    weights = (1, 2, 5, 0)
    expected = {
        (a, b): Fraction(weights[a], 8) * Fraction(weights[b], 8 - weights[a])
        for a, b in itertools.permutations(range(3), 2)
    }
    rng, trials = random.Random(4), 20_000
    drawn = Counter(draw_weighted(weights, 2, rng) for _ in range(trials))
    assert set(drawn) == set(expected)
    found = [drawn[pair] for pair in expected]
    assert chisquare(found, [float(each) * trials for each in expected.values()]).pvalue > LEAST_P
    assert set(draw_weighted(weights, 9, rng)) == {0, 1, 2, 3}
    assert draw_weighted(weights, 4, rng)[-1] == 3, "without weight, it is drawn last"


def draw_phones(seed: int, count: int = 30) -> list[ClientCandidate]:
    """Clients whose speeds spread as those of phones do, 39 times from p10 to p90."""
    rng, sigma = random.Random(seed), math.log(39) / (2 * 1.2816)
    return [ClientCandidate(each, 100, rng.lognormvariate(0.0, sigma)) for each in range(count)]


def take_rounds(
    selector: ClientSelector, candidates: Sequence[ClientCandidate], rounds: int, count: int = 10
) -> tuple[float, list[int]]:
    """Return the seconds of so many rounds, and how often each client was selected."""
    took_s, counts = 0.0, [0] * len(candidates)
    for _ in range(rounds):
        chosen = selector.select(candidates, count).clients
        took_s += max(candidates[each].predicted_s for each in chosen)
        for each in chosen:
            counts[each] += 1
            utility = 100 * math.exp(-0.05 * counts[each])
            selector.report(ClientResult(each, "accepted", candidates[each].predicted_s, utility))
    return took_s, counts


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("fairness", "faster"), [(1.0, 1.3), (0.95, 1.7), (0.9, 2.0), (0.6, 4.0)])
def test_cohorts_are_as_fair_as_they_should_be_and_fast(
    seed: int, fairness: float, faster: float
) -> None:
    candidates = draw_phones(seed)
    by_chance_s, _ = take_rounds(RandomSelector(1), candidates, 90)
    selector = UtilityAwareSelector(UtilityAwareParameters(fairness))
    took_s, counts = take_rounds(selector, candidates, 90)
    assert compute_jain_index(counts) == pytest.approx(fairness, abs=0.015)
    assert by_chance_s > faster * took_s


@pytest.mark.parametrize("seed", range(3))
def test_many_clients_are_as_fair_after_some_turns(seed: int) -> None:
    """Thirty rounds of ten are a turn of three hundred clients, in which fast ones come twice."""
    candidates = draw_phones(seed, 300)
    _, counts = take_rounds(UtilityAwareSelector(), candidates, 30)
    assert max(counts) <= 2
    for turns, difference in ((2, 0.03), (4, 0.02)):
        _, counts = take_rounds(UtilityAwareSelector(), candidates, 30 * turns)
        assert compute_jain_index(counts) == pytest.approx(0.95, abs=difference)
        assert max(counts) <= 2 * turns


@pytest.mark.parametrize("seed", range(5))
def test_at_oorts_fairness_cohorts_are_faster_than_oort(seed: int) -> None:
    candidates = draw_phones(seed)
    oort_s, counts = take_rounds(OortSelector(seed), candidates, 90)
    fairness = compute_jain_index(counts)
    took_s, own = take_rounds(
        UtilityAwareSelector(UtilityAwareParameters(fairness)), candidates, 90
    )
    assert compute_jain_index(own) > fairness - 0.015
    assert took_s < oort_s


def test_all_equally_often_means_a_fixed_cycle_of_cohorts() -> None:
    """With a fairness of 1, thirty clients in tens are three cohorts of neighbors in speed."""
    candidates = draw_phones(1)
    selector = UtilityAwareSelector(UtilityAwareParameters(fairness=1.0))
    ranked = sorted(candidates, key=lambda each: each.predicted_s)
    cohorts = {frozenset(each.client for each in ranked[i : i + 10]) for i in (0, 10, 20)}
    found = [frozenset(selector.select(candidates, 10).clients) for _ in range(9)]
    assert set(found[:3]) == set(found[3:6]) == set(found[6:]) == cohorts


@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=8),
    st.floats(0.2, 1.0),
)
def test_no_rates_of_this_fairness_cost_less(costs: list[float], fairness: float) -> None:
    """Against a general solver of the same problem, with rates of mean 1."""
    rates = compute_participation_rates(costs, fairness)
    number = len(costs)
    assert sum(rates) == pytest.approx(number)
    assert compute_jain_index(rates) >= fairness - 1e-6
    # At a fairness of 1/n or less, one client may be all that takes part.
    most = number / max(fairness, 1 / number)
    solved = minimize(
        lambda w: float(np.dot(w, costs)),
        np.array(rates) * 0.5 + 0.5,
        jac=lambda _: np.array(costs),
        bounds=[(0, None)] * number,
        constraints=[
            {"type": "eq", "fun": lambda w: w.sum() - number},
            {"type": "ineq", "fun": lambda w: most - (w**2).sum()},
        ],
        method="SLSQP",
    )
    if solved.success:
        assert np.dot(rates, costs) <= solved.fun * (1 + 1e-3)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=8), st.floats(0.1, 2))
def test_limited_rates_keep_their_sum_where_that_is_possible(
    rates: list[float], most: float
) -> None:
    found = limit_rates(rates, most)
    assert max(found) <= most * (1 + 1e-6)
    possible = most * sum(rate > 0 for rate in rates)
    assert sum(found) == pytest.approx(min(sum(rates), possible), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("kind", ["energy", "price"])
def test_energy_and_price_count_where_they_are_given_a_weight(kind: str) -> None:
    """Ten clients of one speed, half of which cost fifty times more."""
    costs = [50.0] * 5 + [1.0] * 5
    candidates = [
        ClientCandidate(client, 10, 1.0, energy_j=cost)
        if kind == "energy"
        else ClientCandidate(client, 10, 1.0, price=cost)
        for client, cost in enumerate(costs)
    ]
    _, alike = take_rounds(UtilityAwareSelector(), candidates, 40, 5)
    assert alike == [20] * 10
    for fairness, part in ((0.95, 0.39), (0.5, 0.0)):
        weights = {kind: 1.0}
        parameters = UtilityAwareParameters(fairness, **weights)
        _, counts = take_rounds(UtilityAwareSelector(parameters), candidates, 40, 5)
        assert sum(counts[:5]) / 200 == pytest.approx(part, abs=0.03)


def test_of_clients_alike_the_useful_ones_come_first() -> None:
    """Nine clients of one speed, of which five are in a round: blocks of two, and a half."""
    candidates = [ClientCandidate(client, 10, 1.0) for client in range(9)]
    selector = UtilityAwareSelector(UtilityAwareParameters(fairness=1.0))
    for client in range(9):
        selector.report(ClientResult(client, "accepted", 1.0, float(client)))
    assert selector.select(candidates, 5).clients == (1, 0, 3, 2, 5)


def test_utilities_stand_for_the_norm_of_gradients() -> None:
    assert compute_statistical_utility([]) == 0.0
    assert compute_statistical_utility([3.0, 4.0]) == pytest.approx(2 * math.sqrt(12.5))
