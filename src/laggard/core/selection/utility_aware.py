"""ClientSelection of clients that answer at about the same time: Laggard's own.

A round takes as long as its slowest client. Chance mixes fast and slow clients, so nearly every
round takes as long as a slow one. Here, the clients of a round are a cohort: the slow ones train
together, in few rounds, and the fast ones need not wait for them in the others. All take part
about equally often.

For every time T that a round could take, the clients that answer within T are ranked by weight, and
the best `count` of them are a candidate for the round. Their summed weight, divided by T, is what
a round brings in a second; the T with the largest quotient is chosen. A client's weight is its
statistical utility, times the square of how long it has waited, divided by its relative cost. A
client that has waited for `patience` turns of everybody takes part, so nobody is left out for ever.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laggard.core.selection.failure_pauses import FailurePauses
from laggard.core.selection.selector import (
    ClientCandidate,
    ClientChoice,
    ClientResult,
    ClientSelection,
)

LEAST_WEIGHT = 1e-9
WAITING = 2.0
"""Exponent of the time that a client has waited. With 1, participation is less equal than by chance
where speeds differ 39 times; with 3, rounds take longer and it is hardly more equal."""


@dataclass(frozen=True)
class UtilityAwareParameters:
    """Parameters of the selection of cohorts.

    Attributes:
        patience: turns of everybody that a client may have to wait, at least 1. A turn of everybody
            is as many rounds as let all clients take part once.
        energy: exponent of a client's relative energy; 0 if it does not matter.
        price: exponent of a client's relative price; 0 if it does not matter.
    """

    patience: float = 1.2
    energy: float = 0.0
    price: float = 0.0


@dataclass
class UtilityAwareSelector:
    """ClientSelection of cohorts, by utility for each second.

    Attributes:
        parameters: parameters of the selection.
    """

    parameters: UtilityAwareParameters = field(default_factory=UtilityAwareParameters)
    _utilities: dict[int, float] = field(default_factory=dict)
    _last_rounds: dict[int, int] = field(default_factory=dict)
    _pauses: FailurePauses = field(default_factory=FailurePauses)

    def report(self, result: ClientResult) -> None:
        """Take note of a result (see `ClientSelector`)."""
        self._pauses.report(result)
        if not result.is_failure and result.utility is not None:
            self._utilities[result.client] = result.utility

    def select(self, candidates: Sequence[ClientCandidate], count: int) -> ClientSelection:
        """Select clients (see `ClientSelector`)."""
        free, _ = self._pauses.begin_round(candidates)
        if not free or count < 1:
            return ClientSelection((), count)
        weights = self._weigh(free, count)
        overdue = self._list_overdue(free, count)
        chosen, limit_s = find_cohort(free, weights, count, overdue)
        for each in chosen:
            self._last_rounds[each.client] = self._pauses.round
        choices = tuple(
            ClientChoice(
                each.client,
                "waited longest" if each.client in overdue else f"answers within {limit_s:.3g} s",
            )
            for each in chosen
        )
        return ClientSelection(choices, count - len(choices))

    def _wait(self, client: int) -> int:
        """Return the rounds since a client last took part, or since the beginning."""
        return self._pauses.round - self._last_rounds.get(client, 0)

    def _list_overdue(self, free: Sequence[ClientCandidate], count: int) -> frozenset[int]:
        longest = math.ceil(self.parameters.patience * len(free) / count)
        waiting = [each.client for each in free if self._wait(each.client) >= longest]
        waiting.sort(key=lambda client: -self._wait(client))
        return frozenset(waiting[:count])

    def _weigh(self, free: Sequence[ClientCandidate], count: int) -> list[float]:
        """Weigh the clients; one of unknown utility has the mean utility of a sample."""
        known = [each for each in free if each.client in self._utilities]
        samples = sum(each.samples for each in known)
        mean = sum(self._utilities[each.client] for each in known) / samples if samples else 1.0
        turn = len(free) / count
        relative = self._compare_costs(free)
        return [
            max(self._utilities.get(each.client, mean * each.samples), LEAST_WEIGHT)
            * (self._wait(each.client) / turn) ** WAITING
            / relative[each.client]
            for each in free
        ]

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
                relative[client] *= max(cost / mean, LEAST_WEIGHT) ** exponent
        return relative


def find_cohort(
    candidates: Sequence[ClientCandidate],
    weights: Sequence[float],
    count: int,
    forced: frozenset[int] = frozenset(),
) -> tuple[tuple[ClientCandidate, ...], float]:
    """Find the clients whose summed weight, divided by their slowest one's seconds, is largest.

    It is exact: with the slowest client fixed, the heaviest of those that are no slower are best.

    Args:
        candidates: clients, at least one.
        weights: weight of each, at least 0.
        count: number of clients to find; all if there are fewer.
        forced: numbers of clients that must be among them, at most `count`.

    Returns:
        The clients, the heaviest first, and the predicted seconds of the slowest one.
    """
    order = sorted(range(len(candidates)), key=lambda each: candidates[each].predicted_s)
    held = [each for each in order if candidates[each].client in forced]
    base = sum(weights[each] for each in held)
    least_s = max((candidates[each].predicted_s for each in held), default=0.0)
    places = min(count, len(candidates)) - len(held)
    best: tuple[float, float] | None = None
    kept: list[float] = []
    total = 0.0
    for each in order:
        if candidates[each].client not in forced:
            heapq.heappush(kept, weights[each])
            total += weights[each]
            if len(kept) > places:
                total -= heapq.heappop(kept)
        limit_s = max(candidates[each].predicted_s, least_s)
        if len(kept) == places and (best is None or (base + total) / limit_s > best[0]):
            best = ((base + total) / limit_s, limit_s)
    assert best is not None
    limit_s = best[1]
    within = [
        each
        for each in order
        if candidates[each].predicted_s <= limit_s and candidates[each].client not in forced
    ]
    heaviest = sorted(within, key=lambda each: -weights[each])[:places]
    found = sorted([*held, *heaviest], key=lambda each: -weights[each])
    return tuple(candidates[each] for each in found), limit_s
