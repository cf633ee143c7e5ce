"""What holds for every selection, whatever clients do; and the exact search of cohorts."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from laggard.core.rules.fairness import compute_jain_index
from laggard.core.selection.failure_pauses import LONGEST_PAUSE
from laggard.core.selection.oort import OortSelector
from laggard.core.selection.selector import (
    ClientCandidate,
    ClientResult,
    ClientSelector,
    Outcome,
    compute_statistical_utility,
)
from laggard.core.selection.simple_selection import FastestSelector, RandomSelector
from laggard.core.selection.utility_aware import (
    UtilityAwareParameters,
    UtilityAwareSelector,
    find_cohort,
)
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


@given(
    clients=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), min_size=1, max_size=8),
    count=st.integers(1, 8),
    data=st.data(),
)
def test_no_cohort_brings_more_in_a_second(
    clients: list[tuple[int, int]], count: int, data: st.DataObject
) -> None:
    candidates = [ClientCandidate(n, 1, float(seconds)) for n, (seconds, _) in enumerate(clients)]
    weights = [float(weight) for _, weight in clients]
    size = min(count, len(clients))
    forced = frozenset(data.draw(st.sets(st.integers(0, len(clients) - 1), max_size=size)))
    best = max(
        sum(weights[each] for each in group) / max(candidates[each].predicted_s for each in group)
        for group in itertools.combinations(range(len(clients)), size)
        if forced <= set(group)
    )
    found, limit_s = find_cohort(candidates, weights, count, forced)
    assert len(found) == size
    assert forced <= {each.client for each in found}
    assert all(each.predicted_s <= limit_s for each in found)
    brought = sum(weights[each.client] for each in found)
    assert brought / max(each.predicted_s for each in found) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_cohorts_take_part_as_equally_as_chance_in_much_less_time(seed: int) -> None:
    """Thirty clients whose speeds spread as those of phones do, 39 times from p10 to p90."""
    rng = random.Random(seed)
    sigma = math.log(39) / (2 * 1.2816)
    candidates = [
        ClientCandidate(client, 100, rng.lognormvariate(0.0, sigma)) for client in range(30)
    ]
    took_s, index = {}, {}
    for name in ("random", "utility_aware"):
        selector, counts = SELECTORS[name](), [0] * 30
        took_s[name] = 0.0
        for _ in range(90):
            chosen = selector.select(candidates, 10).clients
            took_s[name] += max(candidates[each].predicted_s for each in chosen)
            for each in chosen:
                counts[each] += 1
                utility = 100 * math.exp(-0.05 * counts[each])
                selector.report(
                    ClientResult(each, "accepted", candidates[each].predicted_s, utility)
                )
        index[name] = compute_jain_index([float(each) for each in counts])
    # Nobody waits longer than this number of rounds.
    assert min(counts) >= 90 // math.ceil(UtilityAwareParameters().patience * 30 / 10) - 1
    assert index["utility_aware"] > 0.95 * index["random"]
    assert took_s["random"] > 1.5 * took_s["utility_aware"]


def test_energy_and_price_count_where_they_are_asked_for() -> None:
    candidates = [ClientCandidate(c, 10, 1.0, energy_j=50.0 if c < 5 else 1.0) for c in range(10)]
    assert set(UtilityAwareSelector().select(candidates, 5).clients) <= set(range(10))
    thrifty = UtilityAwareSelector(UtilityAwareParameters(energy=1.0))
    assert set(thrifty.select(candidates, 5).clients) == set(range(5, 10))
    priced = [ClientCandidate(c, 10, 1.0, price=3.0 if c % 2 else 1.0) for c in range(10)]
    cheap = UtilityAwareSelector(UtilityAwareParameters(price=1.0))
    assert set(cheap.select(priced, 5).clients) == {0, 2, 4, 6, 8}


def test_utilities_stand_for_the_norm_of_gradients() -> None:
    assert compute_statistical_utility([]) == 0.0
    assert compute_statistical_utility([3.0, 4.0]) == pytest.approx(2 * math.sqrt(12.5))
