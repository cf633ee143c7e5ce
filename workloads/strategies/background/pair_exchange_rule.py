"""Protocol of ranks that average their models in pairs during training; one rank's side, pure.

No rank waits for another. An active rank offers its model a. When the offer arrives, a passive
rank with model p moves its model by (a - p) / 2 and answers with the old p. When the answer
arrives, the active rank moves its model by (p - a) / 2, with the same a and p. Both changes are
added to the models as they are by then. So a gradient applied meanwhile is not lost; without one,
both ranks have the mean (a + p) / 2. The sum of the two models is preserved, up to rounding.

A late answer is not dropped, because its sender has already moved: it is applied when it arrives.
Until then that partner gets no further offer, but another one does. With two answers overdue the
rank makes no offer: with k open exchanges an active rank keeps only 1 - k/2 of its old model, so a
third one would move the models apart.

A rank that is gone never answers; its partner drops the exchange. If the rank applies a mean of
all models meanwhile, the offered model is no longer its own, and the answer changes nothing (see
current_model.py).
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.core.rules.graph import Graph, find_partners, is_active
from laggard.workloads.strategies.background.current_model import CurrentModel

if TYPE_CHECKING:
    import torch


MAX_OPEN_EXCHANGES = 2
"""Exchanges that an active rank may have open: one that it waits for, and one that is overdue."""


@dataclass(frozen=True)
class ExchangedModel:
    """Model to send to another rank.

    Attributes:
        rank: receiver of the model.
        number: number of the exchange, as counted by the active rank.
        model: the model, which must not be modified.
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
    """State machine of one rank's exchanges.

    Args:
        rank: number of this rank.
        present: all present ranks, including this one.
        graph: graph of the neighbors that may exchange.
        timeout_ns: time after which an answer is overdue.
        current: model of the rank.
        rng: random numbers for the choice of partners.

    Attributes:
        current: model of the rank.
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
        """Number of exchanges whose answer has not arrived."""
        return len(self._open)

    def offer(self, now_ns: int) -> ExchangedModel | None:
        """Begin an exchange with a random partner and return the offer.

        Returns None if this rank is passive, waits for an answer, or has no free partner.
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
        """Move halfway to an offered model and return the answer with the old model.

        If the sender is gone, nothing moves and the result is None.
        """
        if sender not in self._present:
            return None
        before = self.current.latest.model
        self.current.move((theirs - before) / 2)
        return ExchangedModel(sender, number, before)

    def on_reply(self, number: int, theirs: torch.Tensor) -> bool:
        """Apply the answer of an exchange, even a late one; return whether it moved the model."""
        opened = self._open.pop(number, None)
        if opened is None or opened.means_applied != self.current.means_applied:
            return False
        self.current.move((theirs - opened.mine) / 2)
        return True

    def add_member(self, rank: int) -> None:
        """Add a rank and assign the roles again."""
        self._present = sorted({*self._present, rank})

    def remove_member(self, rank: int) -> None:
        """Remove a rank that is gone and assign the roles again.

        Call it after all messages of that rank have been handled.
        """
        if rank in self._present:
            self._present.remove(rank)
        self._open = {number: each for number, each in self._open.items() if each.partner != rank}
