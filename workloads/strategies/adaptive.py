"""Measures the continuum while it trains, and averages as often as suits it and the objective best, without waiting unless all are to learn alike.

Ours, on top of Overlap Local-SGD. What is measured is how long ranks' steps and the averages take; who leads the averages decides from it, by the pure functions in
`workloads/adaptive/`, and tells all with the next one. It reads nothing but the ranks' own clocks: neither the scenario nor the analysis.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from laggard.workloads.adaptive.choice import Costs, Rules, bytes_between_tiers, choose
from laggard.workloads.strategies.average_member import Measured, Terms
from laggard.workloads.strategies.overlap_local_sgd import Overlapping
from laggard.workloads.strategies.parameters import AdaptiveParameters
from laggard.workloads.strategies.strategy import Seat

FIRST = Terms(1)
"""Until the first average has been timed."""

READY_PART = 0.5
LATEST = 5
"""Averages whose middle one says what an average takes: a rank that is slow for a moment holds one up, and makes no link slow."""

HOUR_S = 3600.0


class Adaptive(Overlapping):
    """As `Overlapping`, on terms that follow what is measured.

    Args:
        parameters: what an average left out costs, and what one that is made.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: AdaptiveParameters, seat: Seat) -> None:
        super().__init__(seat, FIRST, READY_PART, self._decide)
        self._parameters = parameters
        self._averages_ns: deque[int] = deque(maxlen=LATEST)

    def _decide(self, measured: Measured, terms: Terms) -> Terms:
        """As the leader: the terms from now on."""
        self._averages_ns.append(measured.average_ns)
        costs = self._costs(measured)
        if not costs.steps_s:
            return terms
        choice = choose(costs, self._rules(), terms)
        if choice.terms != terms:
            self._seat.note(self._step, choice.reason)
        return choice.terms

    def _costs(self, measured: Measured) -> Costs:
        virtual = 1e-9 / self._seat.dilation
        return Costs(
            steps_s=[step_ns * virtual for step_ns in measured.step_ns.values() if step_ns],
            average_s=median(self._averages_ns) * virtual,
            average_bytes=bytes_between_tiers(self._seat.tiers, self._state.bytes),
        )

    def _rules(self) -> Rules:
        objective, parameters = self._seat.objective, self._parameters
        rent = sum(objective.prices.get(tier, 0.0) for tier in self._seat.tiers)
        per_byte = objective.prices.get("gigabyte", 0.0) / 1e9
        return Rules(objective.name, parameters.drift, parameters.effort, parameters.longest, rent / HOUR_S, per_byte)
