"""Pairwise exchanges of models in the background, as messages.

`ad_psgd` always uses them; `adaptive` uses them in its pairwise mode.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from laggard.core.rules.graph import Graph
from laggard.workloads.strategies.background.current_model import CurrentModel
from laggard.workloads.strategies.background.pair_exchange_rule import (
    ExchangedModel,
    PairExchangeRule,
)
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import TrainingContext


OFFER, ANSWER = 5, 6
"""Kinds of messages, distinct from those of `AsyncAverager`, which `adaptive` uses, too. Version:
the number of the exchange.
"""


class PairExchange:
    """Pairwise exchanges of one rank.

    Args:
        context: training context of the rank.
        graph: graph of the neighbors that may exchange.
        timeout_s: longest wait for one partner before another one is tried, in virtual seconds.
        current: model of the rank.
        lock: lock that is held while the model changes.

    Attributes:
        one_way_ns: time that the last offer made with `timed` spent on the link (see
            `Endpoint.under_way_ns`), after `record_one_way_time` has seen its acknowledgement; 0
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
        """Begin with these present ranks, including this one, which has just joined."""
        self._exchange = PairExchangeRule(
            self._rank, present, self._graph, self._timeout_ns, self._current, self._rng
        )

    def add_member(self, rank: int) -> None:
        """Add a rank; the lock is held."""
        self._exchange.add_member(rank)

    def remove_member(self, rank: int) -> None:
        """Remove a rank that is gone; the lock is held.

        Call it after all messages of that rank have been handled.
        """
        self._exchange.remove_member(rank)

    def on_step_done(self) -> None:
        """Record the end of a step: an exchange is due if this rank is active."""
        self._is_due = True

    def begin(self, *, timed: bool = False) -> None:
        """Begin the exchange that is due, if the rule allows one now.

        Args:
            timed: whether to measure the time on the link; only useful while the link carries
                nothing except such exchanges.
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
        """Record the time on the link of a timed offer, once it is acknowledged.

        The acknowledgement comes long before the answer, which may wait in a slow computer.

        Returns:
            Whether a time was recorded.
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
        """Handle a message and return whether it belongs to an exchange."""
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
