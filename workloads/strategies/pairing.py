"""Exchanges of models two by two beside the training, as messages: what `ad_psgd` always does, and
`adaptive` where that is better.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection

import torch

from laggard.workloads.strategies.current_model import CurrentModel
from laggard.workloads.strategies.exchange import Exchange, Parcel
from laggard.workloads.strategies.graph import Graph
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message

OFFER, ANSWER = 5, 6
"""Kinds of messages, of which no strategy that exchanges models has another with the same number;
version: the number of the exchange."""


class Pairing:
    """One rank's exchanges.

    Args:
        seat: what it trains with.
        graph: who may exchange with whom.
        timeout_s: virtual seconds after which it no longer waits for one partner, and tries
            another.
        current: its model.
        lock: held while that is moved.

    Attributes:
        way_ns: how long the last offer that was made `timed` was on its way (see
            `Endpoint.under_way_ns`), once `note_way` has seen that it has come; 0 before.
    """

    def __init__(
        self,
        seat: Seat,
        graph: Graph,
        timeout_s: float,
        current: CurrentModel,
        lock: threading.Lock,
    ) -> None:
        assert seat.peers is not None
        self._rank, self._peers, self._graph, self._current, self._lock = (
            seat.rank,
            seat.peers,
            graph,
            current,
            lock,
        )
        self._timeout_ns = round(timeout_s * seat.dilation * 1e9)
        self._chance = random.Random(torch.initial_seed())  # noqa: S311 - no secret
        self._owed = False
        self._timed: tuple[int, int, int] | None = None
        self.way_ns = 0

    def meet(self, there: Collection[int]) -> None:
        """These ranks are there, this one among them, which has just come."""
        self._exchange = Exchange(
            self._rank, there, self._graph, self._timeout_ns, self._current, self._chance
        )

    def admit(self, rank: int) -> None:
        """Another one is there, after all or again; the lock is held."""
        self._exchange.admit(rank)

    def leave(self, rank: int) -> None:
        """Another one is gone, and all that it had sent has been heard; the lock is held."""
        self._exchange.leave(rank)

    def note_step(self) -> None:
        """This rank has finished a step: it owes an exchange, where it is an active one."""
        self._owed = True

    def begin(self, *, timed: bool = False) -> None:
        """Begin the exchange that is owed, if there is time; `timed` where nothing else but other
        such exchanges goes over its link.
        """
        with self._lock:
            offered = self._exchange.offer(time.monotonic_ns()) if self._owed else None
        if offered is None:
            return
        self._owed = False
        before_ns = self._peers.under_way_ns(offered.rank) if timed else 0
        number = self._send(OFFER, offered)
        if timed and number is not None:
            self._timed = offered.rank, number, before_ns

    def note_way(self) -> bool:
        """Look whether a timed offer has come, and put down how long it was on its way; long before
        the answer, which may lie with a slow computer first.
        """
        if self._timed is None:
            return False
        rank, number, before_ns = self._timed
        if not self._peers.has_come(rank, number):
            return False
        self.way_ns = max(self._peers.under_way_ns(rank) - before_ns, 1)
        self._timed = None
        return True

    def hear(self, message: Message) -> bool:
        """Another rank's message; whether it was of an exchange."""
        if message.kind not in (OFFER, ANSWER):
            return False
        assert message.tensor is not None
        answer: Parcel | None = None
        with self._lock:
            if message.kind == OFFER:
                answer = self._exchange.hear_offer(message.sender, message.version, message.tensor)
            else:
                self._exchange.hear_answer(message.version, message.tensor)
        if answer is not None:
            self._send(ANSWER, answer)
        return True

    def _send(self, kind: int, parcel: Parcel) -> int | None:
        return self._peers.send(parcel.rank, Message(kind, parcel.number, (), parcel.model))
