"""Oort's scores against its formula, and what its pacer and its draws do."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from laggard.core.selection.oort import (
    KnownClient,
    OortParameters,
    OortSelector,
    Pacer,
    score_clients,
)
from laggard.core.selection.selector import ClientCandidate, ClientResult

PARAMETERS = OortParameters()
LEAST_P = 1e-4


def test_scores_are_those_of_the_formula() -> None:
    """Ten thousand clients in rounds of 1 to 500, computed column by column."""
    rng = np.random.default_rng(1)
    for now in (1, 2, 37, 500):
        utility = rng.lognormal(2.0, 1.5, 2500)
        last = rng.integers(1, now + 1, 2500)
        took = rng.lognormal(1.0, 1.2, 2500)
        preferred = float(np.percentile(took, 30))
        clients = [
            KnownClient(float(u), int(r), float(t))
            for u, r, t in zip(utility, last, took, strict=True)
        ]
        least = utility.min() * 0.999
        ceiling = np.sort(utility)[int(0.98 * 2500)]
        expected = (np.minimum(utility, ceiling) - least) / (utility.max() - least)
        expected = expected + np.sqrt(0.1 * np.log(now) / last)
        expected = np.where(took > preferred, expected * (preferred / took) ** 2, expected)
        np.testing.assert_allclose(
            score_clients(clients, now, preferred, PARAMETERS), expected, rtol=1e-9, atol=1e-9
        )


def test_equal_utilities_have_finite_scores() -> None:
    clients = [KnownClient(3.0, 1, 1.0)] * 4
    assert all(map(math.isfinite, score_clients(clients, 5, math.inf, PARAMETERS)))
    assert all(map(math.isfinite, score_clients([KnownClient(0.0, 1, 1.0)], 5, 1.0, PARAMETERS)))
    assert score_clients([], 5, 1.0, PARAMETERS) == []


@pytest.mark.parametrize(
    ("utilities", "percentile"),
    [
        ([1.0] * 40, 35.0),  # Nothing is gained any more.
        ([1.0] * 20 + [7.0] * 20, 25.0),  # It changes strongly.
        ([1.0] * 20 + [2.0] * 20, 30.0),
        ([1.0] * 39, 30.0),
        ([1.0] * 1000, 100.0),
    ],
)
def test_the_pacer_moves_with_the_utilities(utilities: list[float], percentile: float) -> None:
    pacer = Pacer(PARAMETERS)
    for utility in utilities:
        pacer.end_round(utility)
    assert pacer.percentile == percentile
    durations = [float(second) for second in range(1, 101)]
    expected = math.inf if percentile == 100.0 else 1.0 + percentile
    assert pacer.choose_preferred_s(durations) == expected


def test_those_that_never_took_part_come_first_and_then_those_of_use() -> None:
    candidates = [ClientCandidate(client, 100, 1.0) for client in range(40)]
    selector = OortSelector(1)
    counts: Counter[int] = Counter()
    for number in range(200):
        selection = selector.select(candidates, 4)
        assert len(set(selection.clients)) == 4
        for choice in selection.choices:
            counts[choice.client] += number >= 100
            useful = 100.0 if choice.client < 8 else 1.0
            selector.report(ClientResult(choice.client, "accepted", 1.0, useful))
    assert set(selector._known) == set(range(40))
    assert sum(counts[client] for client in range(8)) > 0.8 * counts.total()


def test_slow_clients_are_chosen_less() -> None:
    candidates = [ClientCandidate(client, 100, 30.0 if client < 4 else 1.0) for client in range(12)]
    selector = OortSelector(2)
    counts: Counter[int] = Counter()
    for number in range(35):  # The pacer has not moved yet.
        for choice in selector.select(candidates, 4).choices:
            counts[choice.client] += number >= 15
            took_s = candidates[choice.client].predicted_s
            selector.report(ClientResult(choice.client, "accepted", took_s, 10.0))
    assert sum(counts[client] for client in range(4)) < 0.05 * counts.total()


def test_equal_clients_are_drawn_equally_often() -> None:
    drawn: Counter[int] = Counter()
    for seed in range(2000):
        selector = OortSelector(seed)
        drawn.update(selector.select([ClientCandidate(c, 10, 1.0) for c in range(10)], 3).clients)
    assert chisquare([drawn[client] for client in range(10)]).pvalue > LEAST_P
