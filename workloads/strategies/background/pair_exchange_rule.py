"""Ranks that average their models two by two while they train, nobody waiting for anybody: one
rank's part of the protocol, pure.

An active rank offers its model a; a passive one, whose model is p, moves by (a - p) / 2 in the
moment in which it hears of it, and answers with the p from before. When the answer comes, the
active rank moves by (p - a) / 2 of the very same a and p. Both moves are added to whatever the
models have become by then: a gradient applied meanwhile is not lost, without one both have the mean
(a + p) / 2, and the sum of the two models is what it was up to rounding.

An answer that is late is not dropped, since its sender has moved already: it is applied when it
comes. Until then that partner is offered nothing, and another is; with two answers overdue none is,
since an offer made on top of three that are open could move models apart instead of together (with
k open ones an active rank keeps 1 - k/2 of the model that it had). Who is gone never answers: its
exchange is dropped by both sides. Where the rank takes a mean of all meanwhile, the model that it
offered is no longer its own, and the answer moves nothing (see current_model.py).
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.workloads.strategies.background.current_model import CurrentModel
from laggard.workloads.strategies.base.graph import Graph, find_partners, is_active

if TYPE_CHECKING:
    import torch


MAX_OPEN_EXCHANGES = 2
"""Exchanges that an active rank may have open: one that it waits for, one that is overdue."""


@dataclass(frozen=True)
class ExchangedModel:
    """A model for another rank.

    Attributes:
        rank: whose it becomes.
        number: of the exchange, as the active rank counts.
        model: which nobody changes.
    """

    rank: int
    number: int
    model: torch.Tensor


@dataclass(frozen=True)
class _OpenExchange:
    partner: int
    mine: torch.Tensor
    since_ns: int
    means_applied: int


class PairExchangeRule:
    """One rank's model, and its exchanges: a state machine.

    Args:
        rank: whose.
        present: the ranks that are.
        graph: who may exchange with whom.
        timeout_ns: after which an answer is overdue.
        current: the rank's model.
        rng: chooses partners.

    Attributes:
        current: the rank's model.
    """

    def __init__(
        self,
        rank: int,
        present: Collection[int],
        graph: Graph,
        timeout_ns: int,
        current: CurrentModel,
        rng: random.Random,
    ) -> None:
        self._rank, self._present = rank, sorted(present)
        self._graph, self._timeout_ns, self._rng = graph, timeout_ns, rng
        self.current = current
        self._open: dict[int, _OpenExchange] = {}
        self._begun = 0

    @property
    def open_exchanges(self) -> int:
        """Exchanges whose answer has not come."""
        return len(self._open)

    def offer(self, now_ns: int) -> ExchangedModel | None:
        """Begin an exchange with a partner chosen at random; None where this rank is passive, waits
        for an answer, or has no partner left.
        """
        waits = any(now_ns - each.since_ns < self._timeout_ns for each in self._open.values())
        if (
            waits
            or len(self._open) >= MAX_OPEN_EXCHANGES
            or not is_active(self._present, self._rank)
        ):
            return None
        busy = {each.partner for each in self._open.values()}
        free = [
            rank
            for rank in find_partners(self._graph, self._present, self._rank)
            if rank not in busy
        ]
        if not free:
            return None
        partner, mine = self._rng.choice(free), self.current.latest.model
        self._begun += 1
        self._open[self._begun] = _OpenExchange(partner, mine, now_ns, self.current.means_applied)
        return ExchangedModel(partner, self._begun, mine)

    def on_offer(self, sender: int, number: int, theirs: torch.Tensor) -> ExchangedModel | None:
        """Move halfway to a model that was offered, and answer with the one from before; None, and
        nothing moves, where the sender is gone.
        """
        if sender not in self._present:
            return None
        before = self.current.latest.model
        self.current.move((theirs - before) / 2)
        return ExchangedModel(sender, number, before)

    def on_reply(self, number: int, theirs: torch.Tensor) -> bool:
        """The other half of an exchange, in time or late; whether it still moved the model."""
        opened = self._open.pop(number, None)
        if opened is None or opened.means_applied != self.current.means_applied:
            return False
        self.current.move((theirs - opened.mine) / 2)
        return True

    def add_member(self, rank: int) -> None:
        """A rank is there, after all or again; the roles are made anew."""
        self._present = sorted({*self._present, rank})

    def remove_member(self, rank: int) -> None:
        """A rank is gone, and all that it had sent has been heard; the roles are made anew of those
        who are there.
        """
        if rank in self._present:
            self._present.remove(rank)
        self._open = {number: each for number, each in self._open.items() if each.partner != rank}
