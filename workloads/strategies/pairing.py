"""Exchanges of models two by two beside the training, as messages: what `ad_psgd` always does, and `adaptive` where that is better."""

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
"""Kinds of messages, of which no strategy that exchanges models has another with the same number; version: the number of the exchange."""


class Pairing:
    """One rank's exchanges.

    Args:
        seat: what it trains with.
        graph: who may exchange with whom.
        timeout_s: virtual seconds after which it no longer waits for one partner, and tries another.
        current: its model.
        lock: held while that is moved.

    Attributes:
        way_ns: how long the offer of the first exchange that was begun `timed` and is over was on its way (see `Endpoint.under_way_ns`); 0 before there is one.
    """

    def __init__(self, seat: Seat, graph: Graph, timeout_s: float, current: CurrentModel, lock: threading.Lock) -> None:
        assert seat.peers is not None
        self._rank, self._peers, self._graph, self._current, self._lock = seat.rank, seat.peers, graph, current, lock
        self._timeout_ns = round(timeout_s * seat.dilation * 1e9)
        self._chance = random.Random(torch.initial_seed())  # noqa: S311 - no secret
        self._owed = False
        self._timed: tuple[int, int] | None = None
        self.way_ns = 0

    def meet(self, there: Collection[int]) -> None:
        """These ranks are there, this one among them, which has just come."""
        self._exchange = Exchange(self._rank, there, self._graph, self._timeout_ns, self._current, self._chance)

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
        """Begin the exchange that is owed, if there is time; `timed` where nothing else but other such exchanges goes over its link."""
        with self._lock:
            offered = self._exchange.offer(time.monotonic_ns()) if self._owed else None
        if offered is not None:
            self._owed = False
            if timed:
                self._timed = offered.number, self._peers.under_way_ns(offered.rank)
            self._send(OFFER, offered)

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
        if self._timed is not None and (message.kind, message.version) == (ANSWER, self._timed[0]):
            self.way_ns = max(self._peers.under_way_ns(message.sender) - self._timed[1], 1)
            self._timed = None
        if answer is not None:
            self._send(ANSWER, answer)
        return True

    def _send(self, kind: int, parcel: Parcel) -> None:
        self._peers.send(parcel.rank, Message(kind, parcel.number, (), parcel.model))
