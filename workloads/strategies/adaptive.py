"""Measures the continuum while it trains, and has models averaged in the manner and as often as
suits it and the objective best.

Ours, out of Overlap Local-SGD (all, nobody waiting) and AD-PSGD (two by two). What is measured is
how long ranks' steps and the averages of all take, and before there was one, exchanges of two, for
what that takes of slow links cannot be had back; who leads the averages decides from it, by the
pure functions in `workloads/adaptive/`, and tells all with the next one. It reads nothing but the
ranks' own clocks: neither the scenario nor the analysis.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from statistics import median

from laggard.workloads.adaptive.choice import (
    Costs,
    Rules,
    Seen,
    bytes_between_tiers,
    choose,
    first_terms,
    open_averages,
)
from laggard.workloads.strategies.average_member import Manner, Measured, Terms, Untimed
from laggard.workloads.strategies.graph import is_active
from laggard.workloads.strategies.overlap_local_sgd import Overlapping
from laggard.workloads.strategies.pairing import Pairing
from laggard.workloads.strategies.parameters import AdaptiveParameters
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message

READY_PART = 0.5
LATEST = 5
"""Averages whose middle one says what an average takes: a rank that is slow for a moment holds one
up, and makes no link slow."""

OVERDUE_S = 10.0
"""After which a rank no longer waits for one partner, and tries another."""

HOUR_S = 3600.0


class Adaptive(Overlapping):
    """As `Overlapping`, on terms that follow what is measured; where these say so, two by two.

    Args:
        parameters: what an average left out costs, what one that is made, and when another manner
            is better.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: AdaptiveParameters, seat: Seat) -> None:
        self._parameters = parameters
        super().__init__(
            seat, first_terms(seat.objective.name), READY_PART, self._decide, self._open
        )
        self._averages_ns: deque[int] = deque(maxlen=LATEST)
        self._reasoned = False

    @property
    def weight(self) -> float:
        """By samples since the last average; like any other's where models are averaged two by two,
        which keeps the plain mean (see `PeerStrategy`).
        """
        return 1.0 if self._member.terms.manner is Manner.PAIRS else super().weight

    def _meet(self, there: Collection[int]) -> None:
        super()._meet(there)
        self._pairing = Pairing(self._seat, "complete", OVERDUE_S, self._current, self._lock)
        self._pairing.meet(there)

    def _note_arrival(self, rank: int) -> None:
        super()._note_arrival(rank)
        self._pairing.admit(rank)

    def _note_loss(self, rank: int) -> None:
        super()._note_loss(rank)
        self._pairing.leave(rank)

    def _note_step(self, samples: int) -> None:
        super()._note_step(samples)
        self._pairing.note_step()

    def _exchange_models(self) -> None:
        if self._pairing.note_way():
            with self._lock:
                self._member.take_steps(0, self._step_ns, self._trip_ns)
        super()._exchange_models()
        if self._member.terms.manner is Manner.PAIRS:
            self._pairing.begin(timed=self._trip_ns is None)

    def _hear(self, message: Message) -> None:
        if not self._pairing.hear(message):
            super()._hear(message)

    @property
    def _trip_ns(self) -> int | None:
        """Who begins exchanges has had one before it says that it is ready, as long as models go
        two by two and nothing else has been timed.

        What counts is the time on the way, taken to be the same back, without that of the two
        computers: a slow one has its share of an average of all by itself, and links have all of
        it.
        """
        there = sorted({self._seat.rank, *self._there})
        if self._member.terms != first_terms(self._seat.objective.name) or not is_active(
            there, self._seat.rank
        ):
            return 0
        if self._member.terms.manner is not Manner.PAIRS or len(there) < 2:
            return 0
        return 2 * self._pairing.way_ns or None

    def _open(self, untimed: Untimed, terms: Terms) -> Terms | None:
        """As the leader: the first average's terms, once what exchanges of two take says enough."""
        if terms.manner is not Manner.PAIRS:
            return terms
        there = sorted({self._seat.rank, *self._there})
        seen = Seen(
            steps_s=[each * 1e-9 for each in untimed.step_ns.values() if each],
            trips_s=[each * 1e-9 for each in untimed.trip_ns.values()],
            awaited=sum(is_active(there, rank) for rank in there),
            passed_s=untimed.taken * untimed.step_ns.get(self._seat.rank, 0) * 1e-9,
        )
        opening = open_averages(seen, self._rules(), terms)
        if opening.reason and not self._reasoned:
            self._reasoned = True
            self._seat.note(self._step, opening.reason)
        return opening.terms if opening.begins else None

    def _decide(self, measured: Measured, terms: Terms) -> Terms:
        """As the leader: the terms from now on."""
        self._averages_ns.append(measured.average_ns)
        steps_ns = [step_ns for step_ns in measured.step_ns.values() if step_ns]
        if not steps_ns:
            return terms
        choice = choose(self._costs(steps_ns), self._rules(), terms)
        if choice.terms != terms:
            self._seat.note(self._step, choice.reason)
        return choice.terms

    def _costs(self, steps_ns: list[int]) -> Costs:
        virtual = 1e-9 / self._seat.dilation
        return Costs(
            steps_s=[step_ns * virtual for step_ns in steps_ns],
            average_s=median(self._averages_ns) * virtual,
            average_bytes=bytes_between_tiers(self._seat.tiers, self._state.bytes),
        )

    def _rules(self) -> Rules:
        objective, parameters = self._seat.objective, self._parameters
        rent = sum(objective.prices.get(tier, 0.0) for tier in self._seat.tiers)
        return Rules(
            objective.name,
            parameters.drift,
            parameters.effort,
            parameters.longest,
            rent_per_s=rent / HOUR_S,
            price_per_byte=objective.prices.get("gigabyte", 0.0) / 1e9,
            pairs_from=parameters.pairs,
        )
