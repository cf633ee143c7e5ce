"""Contributions of clients against all orders, and sampled ones against exact ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from laggard.core.contribution.client_contributions import (
    MOST_EXACT_CLIENTS,
    CachedValue,
    ClientContribution,
    Valuation,
    measure_contributions,
)

Value = Callable[[frozenset[int]], float]


def draw_game(clients: int, seed: int) -> Value:
    """A gain that grows ever more slowly: what clients know together, with overlaps."""
    rng = np.random.default_rng(seed)
    knows = rng.random((clients, 12)) * rng.integers(0, 2, (clients, 12))

    def value(coalition: frozenset[int]) -> float:
        if not coalition:
            return 0.0
        return float(np.sqrt(knows[sorted(coalition)].max(axis=0)).sum())

    return value


def average_all_orders(value: Value, clients: int) -> list[float]:
    gains = [0.0] * clients
    for order in itertools.permutations(range(clients)):
        for place, client in enumerate(order):
            gains[client] += value(frozenset(order[: place + 1])) - value(frozenset(order[:place]))
    return [gain / math.factorial(clients) for gain in gains]


def measure(
    value: Value, clients: int, valuation: Valuation = "shapley", orders: int = 200
) -> list[ClientContribution]:
    rng = np.random.default_rng(5)
    found = measure_contributions(value, range(clients), valuation, rng, orders)
    return [found[client] for client in range(clients)]


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_few_clients_have_exact_shapley_values(clients: int, seed: int) -> None:
    value = draw_game(clients, seed)
    found = measure(value, clients)
    assert [each.value for each in found] == pytest.approx(average_all_orders(value, clients))
    assert all(each.error == 0 for each in found)


@pytest.mark.parametrize("seed", range(5))
def test_many_clients_are_ranked_like_exact_ones(seed: int) -> None:
    clients = MOST_EXACT_CLIENTS + 2
    value = CachedValue(draw_game(clients, seed))
    sampled = measure(value, clients, orders=200)
    exact = np.zeros(clients)
    for client in range(clients):
        others = [each for each in range(clients) if each != client]
        for size in range(clients):
            weight = 1 / (clients * math.comb(clients - 1, size))
            for chosen in itertools.combinations(others, size):
                without = frozenset(chosen)
                exact[client] += weight * (value(without | {client}) - value(without))
    assert spearmanr([each.value for each in sampled], exact).statistic >= 0.9
    whole = value(frozenset(range(clients)))
    assert sum(each.value for each in sampled) == pytest.approx(whole)
    # The truncation may shift a value by its part of the gain.
    far = [
        abs(each.value - true) > 4 * each.error + 0.01 * whole
        for each, true in zip(sampled, exact, strict=True)
    ]
    assert not any(far)


def test_what_would_be_lost_without_a_client_is_its_leave_one_out_value() -> None:
    value = draw_game(4, 3)
    everybody = frozenset(range(4))
    found = measure(value, 4, "leave_one_out")
    assert [each.value for each in found] == [
        pytest.approx(value(everybody) - value(everybody - {client})) for client in range(4)
    ]


def test_an_almost_complete_coalition_is_not_computed_further() -> None:
    """Two clients bring all of the gain, so that the others need not be tried once both are in."""
    clients = MOST_EXACT_CLIENTS + 4

    def gain(coalition: frozenset[int]) -> float:
        return float(len(coalition & {0, 1}))

    known = CachedValue(gain)
    found = measure(known, clients, orders=10)
    assert [each.value for each in found[:2]] == [pytest.approx(1), pytest.approx(1)]
    assert all(each.value == 0 for each in found[2:])
    assert known.computed < 10 * 2 * clients


def test_nobody_contributes_to_a_round_without_answers() -> None:
    assert measure_contributions(lambda _: 1.0, [], "shapley", np.random.default_rng(1), 4) == {}
