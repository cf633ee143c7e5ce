"""Exchanges of models two by two beside the training, as messages: what `ad_psgd` always does, and
`adaptive` where that is better.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from laggard.workloads.strategies.background.current_model import CurrentModel
from laggard.workloads.strategies.background.pair_exchange_rule import (
    ExchangedModel,
    PairExchangeRule,
)
from laggard.workloads.strategies.base.graph import Graph
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import TrainingContext


OFFER, ANSWER = 5, 6
"""Kinds of messages, of which no strategy that exchanges models has another with the same number;
version: the number of the exchange."""


class PairExchange:
    """One rank's exchanges.

    Args:
        context: what it trains with.
        graph: who may exchange with whom.
        timeout_s: virtual seconds after which it no longer waits for one partner, and tries
            another.
        current: its model.
        lock: held while that is moved.

    Attributes:
        one_way_ns: how long the last offer that was made `timed` was on its way (see
            `Endpoint.under_way_ns`), once `record_one_way_time` has seen that it has come; 0
            before.
    """

    def __init__(
        self,
        context: TrainingContext,
        graph: Graph,
        timeout_s: float,
        current: CurrentModel,
        lock: threading.Lock,
    ) -> None:
        import torch

        assert context.peers is not None
        self._rank, self._peers, self._graph, self._current, self._lock = (
            context.rank,
            context.peers,
            graph,
            current,
            lock,
        )
        self._timeout_ns = round(timeout_s * context.dilation * 1e9)
        self._rng = random.Random(torch.initial_seed())  # noqa: S311 - no secret
        self._is_due = False
        self._timed: tuple[int, int, int] | None = None
        self.one_way_ns = 0

    def reset_members(self, present: Collection[int]) -> None:
        """These ranks are there, this one among them, which has just come."""
        self._exchange = PairExchangeRule(
            self._rank, present, self._graph, self._timeout_ns, self._current, self._rng
        )

    def add_member(self, rank: int) -> None:
        """Another one is there, after all or again; the lock is held."""
        self._exchange.add_member(rank)

    def remove_member(self, rank: int) -> None:
        """Another one is gone, and all that it had sent has been heard; the lock is held."""
        self._exchange.remove_member(rank)

    def on_step_done(self) -> None:
        """This rank has finished a step: it owes an exchange, where it is an active one."""
        self._is_due = True

    def begin(self, *, timed: bool = False) -> None:
        """Begin the exchange that is owed, if there is time; `timed` where nothing else but other
        such exchanges goes over its link.
        """
        with self._lock:
            offered = self._exchange.offer(time.monotonic_ns()) if self._is_due else None
        if offered is None:
            return
        self._is_due = False
        before_ns = self._peers.under_way_ns(offered.rank) if timed else 0
        number = self._send(OFFER, offered)
        if timed and number is not None:
            self._timed = offered.rank, number, before_ns

    def record_one_way_time(self) -> bool:
        """Look whether a timed offer has come, and put down how long it was on its way; long before
        the answer, which may lie with a slow computer first.
        """
        if self._timed is None:
            return False
        rank, number, before_ns = self._timed
        if not self._peers.is_acknowledged(rank, number):
            return False
        self.one_way_ns = max(self._peers.under_way_ns(rank) - before_ns, 1)
        self._timed = None
        return True

    def receive(self, message: Message) -> bool:
        """Another rank's message; whether it was of an exchange."""
        if message.kind not in (OFFER, ANSWER):
            return False
        assert message.tensor is not None
        reply: ExchangedModel | None = None
        with self._lock:
            if message.kind == OFFER:
                reply = self._exchange.on_offer(message.sender, message.version, message.tensor)
            else:
                self._exchange.on_reply(message.version, message.tensor)
        if reply is not None:
            self._send(ANSWER, reply)
        return True

    def _send(self, kind: int, outgoing: ExchangedModel) -> int | None:
        return self._peers.send(outgoing.rank, Message(kind, outgoing.number, (), outgoing.model))
