"""ClientSelection of clients that answer at about the same time: Laggard's own.

A round takes as long as its slowest client. Chance mixes fast and slow clients, so nearly every
round takes as long as a slow one. Here, the clients of a round are a cohort: the slow ones train
together, in few rounds, and the fast ones need not wait for them in the others.

Each client has a rate, at which it takes part in the long run. Rates make rounds as short as they
can be at a given Jain's index of participation (`participation_rates.py`). Clients of like speed
have the same rate, so that they are due together. Each round, a client's credit grows by its rate;
to take part costs 1. A tenth of a round's clients are those with the most credit, and they set
its length: nobody slower than them takes part. Of the others, first come those that are nearly due,
the slowest first, and then those with the most credit. So fast clients take part in the rounds of
different cohorts; if cohorts never mixed, the model would forget what the others know. Of clients
alike, those with a high statistical utility come first. Rates that count it too were slower at the
same fairness (`experiments/federated_selection`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laggard.core.selection.failure_pauses import FailurePauses
from laggard.core.selection.participation_rates import compute_participation_rates, limit_rates
from laggard.core.selection.selector import (
    ClientCandidate,
    ClientChoice,
    ClientResult,
    ClientSelection,
)

LEAST_COST = 1e-9
NEARLY_DUE = 0.3
"""Credit from which a client joins a round that is no faster than it. Slow clients that are nearly
due then save a slow round of their own."""
CLIENTS_PER_LEADER = 10
"""Clients of a round for each one that leads it. With 1, 4 and 10, the accuracy for the worst-off
client was 9, 7 and 2 % lower than by chance (ten seeds of `experiments/federated_selection`)."""
BLOCKS_PER_ROUND = 2
"""Blocks of clients of like speed for each round that they make up; those of one have one rate."""


@dataclass(frozen=True)
class UtilityAwareParameters:
    """Parameters of the selection of cohorts.

    Attributes:
        fairness: Jain's index of participation that is aimed at, above 0; 1 means all equally
            often. Less fairness makes rounds shorter.
        energy: exponent of a client's relative energy; 0 if it does not matter.
        price: exponent of a client's relative price; 0 if it does not matter.
    """

    fairness: float = 0.95
    energy: float = 0.0
    price: float = 0.0


@dataclass
class UtilityAwareSelector:
    """ClientSelection of cohorts, by speed and by credit.

    Attributes:
        parameters: parameters of the selection.
    """

    parameters: UtilityAwareParameters = field(default_factory=UtilityAwareParameters)
    _utilities: dict[int, float] = field(default_factory=dict)
    _credits: dict[int, float] = field(default_factory=dict)
    _pauses: FailurePauses = field(default_factory=FailurePauses)

    def report(self, result: ClientResult) -> None:
        """Record a result (see `ClientSelector`)."""
        self._pauses.report(result)
        if not result.is_failure and result.utility is not None:
            self._utilities[result.client] = result.utility

    def select(self, candidates: Sequence[ClientCandidate], count: int) -> ClientSelection:
        """Select clients (see `ClientSelector`)."""
        free, _ = self._pauses.begin_round(candidates)
        if not free or count < 1:
            return ClientSelection((), count)
        size = min(count, len(free))
        blocks = _divide_by_speed(free, max(size // BLOCKS_PER_ROUND, 1))
        for client, rate in self._compute_rates(blocks, size).items():
            self._credits[client] = self._credits.get(client, 0.0) + rate
        chosen = self._choose_cohort(blocks, size)
        slowest_s = max(each.predicted_s for each in chosen)
        choices = tuple(
            ClientChoice(each.client, f"due, in a round of {slowest_s:.3g} s")
            if self._credits[each.client] >= NEARLY_DUE
            else ClientChoice(each.client, f"answers within {slowest_s:.3g} s")
            for each in chosen
        )
        for each in chosen:
            self._credits[each.client] -= 1.0
        return ClientSelection(choices, count - len(choices))

    def _compute_rates(
        self, blocks: Sequence[Sequence[ClientCandidate]], size: int
    ) -> Mapping[int, float]:
        """Return in how many rounds each client takes part, from 0 to 1."""
        free = [each for block in blocks for each in block]
        relative = self._compare_costs(free)
        costs: list[float] = []
        for block in blocks:
            mean_s = sum(each.predicted_s for each in block) / len(block)
            costs += [max(mean_s * relative[each.client], LEAST_COST) for each in block]
        rates = compute_participation_rates(costs, self.parameters.fairness)
        part = size / len(free)
        limited = limit_rates([part * rate for rate in rates], 1.0)
        return {each.client: rate for each, rate in zip(free, limited, strict=True)}

    def _choose_cohort(
        self, blocks: Sequence[Sequence[ClientCandidate]], size: int
    ) -> tuple[ClientCandidate, ...]:
        """Return the clients of a round, those that are due first."""
        free = [each for block in blocks for each in block]
        leaders = heapq.nlargest(max(size // CLIENTS_PER_LEADER, 1), free, key=self._get_credit)
        # A round that the leaders' speed would leave incomplete has somewhat slower clients too.
        limit_s = max(free[-size].predicted_s, *(each.predicted_s for each in leaders))

        def rank(each: ClientCandidate, block: int) -> tuple[int, float, float]:
            credit = self._get_credit(each)
            is_due = credit >= NEARLY_DUE
            return block if is_due else len(blocks), -credit, -self._get_utility(each)

        within = [
            (rank(each, number), each)
            for number, block in enumerate(blocks)
            for each in block
            if each.predicted_s <= limit_s
        ]
        within.sort(key=lambda pair: pair[0])
        return tuple(each for _, each in within[:size])

    def _get_credit(self, client: ClientCandidate) -> float:
        """Return the credit of a client; equal ones do not differ in their last digits."""
        return round(self._credits[client.client], 9)

    def _get_utility(self, client: ClientCandidate) -> float:
        """Return the last statistical utility of a client, or its samples before it has one."""
        return self._utilities.get(client.client, float(client.samples))

    def _compare_costs(self, free: Sequence[ClientCandidate]) -> Mapping[int, float]:
        """Return the cost of each client relative to the mean; 1 where none is known."""
        relative = dict.fromkeys((each.client for each in free), 1.0)
        for exponent, costs in (
            (self.parameters.energy, {each.client: each.energy_j for each in free}),
            (self.parameters.price, {each.client: each.price for each in free}),
        ):
            known = {client: cost for client, cost in costs.items() if cost is not None}
            mean = sum(known.values()) / len(known) if known else 0.0
            if not exponent or mean <= 0:
                continue
            for client, cost in known.items():
                relative[client] *= max(cost / mean, LEAST_COST) ** exponent
        return relative


def _divide_by_speed(
    free: Sequence[ClientCandidate], size: int
) -> Sequence[Sequence[ClientCandidate]]:
    """Return blocks of so many clients of like speed, the slowest first."""
    order = sorted(free, key=lambda each: -each.predicted_s)
    return [order[start : start + size] for start in range(0, len(order), size)]
