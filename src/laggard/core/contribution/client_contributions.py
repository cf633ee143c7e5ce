"""Contributions of the clients of a round to what the model gained in it.

A coalition is worth what the model would have gained if only its clients had changed it. A
client's contribution is its Shapley value (Shapley 1953), or what the model would have lost
without it (leave-one-out). Up to eight clients, Shapley values are exact. With more, clients join
in random orders, each followed by its reverse, and joining an almost complete coalition counts
as no gain (truncated Monte Carlo; Ghorbani and Zou, ICML 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from laggard.core.contribution.shapley import compute_shapley
from laggard.core.cost_model.arrays import BoolArray, FloatArray

MOST_EXACT_CLIENTS = 8
TRUNCATION = 0.01
"""Part of the whole gain within which a coalition counts as complete."""

Valuation = Literal["shapley", "leave_one_out"]
CoalitionValue = Callable[[frozenset[int]], float]


@dataclass(frozen=True)
class ClientContribution:
    """ClientContribution of a client to a round.

    Attributes:
        value: its part of the gain, in the unit of the gain; negative if it did harm.
        error: standard error of the value; 0 if it is exact.
    """

    value: float
    error: float = 0.0


def add_contributions(
    before: ClientContribution | None, contribution: ClientContribution
) -> ClientContribution:
    """Return the sum of a client's contributions in several rounds, with independent errors."""
    if before is None:
        return contribution
    return ClientContribution(
        before.value + contribution.value, math.hypot(before.error, contribution.error)
    )


@dataclass
class CachedValue:
    """Value of coalitions, each computed once.

    Attributes:
        compute: function that computes a value.
        computed: number of values that were computed.
    """

    compute: CoalitionValue
    computed: int = 0
    _known: dict[frozenset[int], float] = field(default_factory=dict)

    def __call__(self, coalition: frozenset[int]) -> float:
        """Return the value of a coalition."""
        if coalition not in self._known:
            self._known[coalition] = self.compute(coalition)
            self.computed += 1
        return self._known[coalition]


def measure_contributions(
    value: CoalitionValue,
    clients: Sequence[int],
    valuation: Valuation,
    rng: np.random.Generator,
    orders: int,
    most_exact: int = MOST_EXACT_CLIENTS,
) -> Mapping[int, ClientContribution]:
    """Return the contribution of each client.

    Args:
        value: gain of the model with the answers of these clients only.
        clients: clients of the round, all different.
        valuation: how the gain is divided.
        rng: source of the random orders.
        orders: number of random orders, each with its reverse, if Shapley values are not exact.
        most_exact: clients up to which they are.

    Examples:
        >>> gain = lambda coalition: float(len(coalition & {3}))
        >>> found = measure_contributions(gain, [3, 5], "shapley", np.random.default_rng(1), 8)
        >>> found[3].value, found[5].value
        (1.0, 0.0)
    """
    known = CachedValue(value)
    if not clients:
        return {}
    if valuation == "leave_one_out":
        everybody = frozenset(clients)
        whole = known(everybody)
        return {each: ClientContribution(whole - known(everybody - {each})) for each in clients}
    if len(clients) <= most_exact:
        return _divide_exactly(known, clients, rng)
    return _sample_orders(known, clients, rng, orders)


def _divide_exactly(
    value: CoalitionValue, clients: Sequence[int], rng: np.random.Generator
) -> Mapping[int, ClientContribution]:
    def game(members: BoolArray) -> FloatArray:
        """Costs of coalitions, [C, 1], of membership [C, 1, players]."""
        coalitions = (
            frozenset(client for client, is_in in zip(clients, row, strict=True) if is_in)
            for row in members[:, 0]
        )
        return np.array([[-value(each)] for each in coalitions])

    shares = compute_shapley(game, len(clients), 1, rng)
    return {client: ClientContribution(float(s)) for client, s in zip(clients, shares, strict=True)}


def _sample_orders(
    value: CoalitionValue, clients: Sequence[int], rng: np.random.Generator, orders: int
) -> Mapping[int, ClientContribution]:
    whole, nothing = value(frozenset(clients)), value(frozenset())
    near = TRUNCATION * abs(whole - nothing)
    # The mean of an order and its reverse is one observation, since the two are not independent.
    observed: dict[int, list[float]] = {client: [] for client in clients}
    for _ in range(orders):
        drawn = [clients[place] for place in rng.permutation(len(clients))]
        there, back = (_join_in_order(value, each, whole, near) for each in (drawn, drawn[::-1]))
        for client, gains in observed.items():
            gains.append((there[client] + back[client]) / 2)
    return {client: _average(gains) for client, gains in observed.items()}


def _join_in_order(
    value: CoalitionValue, order: Sequence[int], whole: float, near: float
) -> Mapping[int, float]:
    """Return what the value gains when each client joins those before it."""
    gains: dict[int, float] = {}
    joined, before = frozenset[int](), value(frozenset())
    for client in order:
        joined |= {client}
        # What is left counts as gained by the client that completes the coalition, so that the
        # gains of an order add up to the whole.
        if abs(whole - before) <= near:
            gains[client], before = whole - before, whole
            continue
        after = value(joined)
        gains[client], before = after - before, after
    return gains


def _average(gains: Sequence[float]) -> ClientContribution:
    spread = float(np.std(gains, ddof=1)) if len(gains) > 1 else math.inf
    return ClientContribution(float(np.mean(gains)), spread / math.sqrt(len(gains)))
