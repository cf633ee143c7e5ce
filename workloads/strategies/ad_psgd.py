"""Asynchronous decentralised parallel SGD: ranks average their models two by two in a thread beside the training, and wait for nobody.

X. Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018, algorithm 1, and the threads and the bipartite graph of its
section on implementation.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection

import torch

from laggard.workloads.strategies.beside_training import BesideTraining
from laggard.workloads.strategies.exchange import Exchange, Parcel
from laggard.workloads.strategies.parameters import ADPSGDParameters
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message

OFFER, ANSWER = 2, 3
"""Version: the number of the exchange."""


class ADPSGD(BesideTraining):
    """x_i <- x_i - lr * g_i(x_i as it was read), and beside it x_i, x_j <- (x_i + x_j) / 2 for random pairs (see exchange.py).

    An active rank begins an exchange for each of its updates, or as many as there is time for.

    Args:
        parameters: graph and time-out.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: ADPSGDParameters, seat: Seat) -> None:
        super().__init__(seat)
        self._graph = parameters.graph
        self._timeout_ns = round(parameters.timeout_s * seat.dilation * 1e9)
        self._chance = random.Random(torch.initial_seed())  # noqa: S311 - no secret
        self._meet({seat.rank, *self._there})
        self._owes_exchange = False

    def _meet(self, there: Collection[int]) -> None:
        rank = self._seat.rank
        self._exchange = Exchange(rank, there, self._graph, self._timeout_ns, self._current, self._chance)

    def _note_arrival(self, rank: int) -> None:
        self._exchange.admit(rank)

    def _note_step(self, _samples: int) -> None:
        self._owes_exchange = True

    def _note_loss(self, rank: int) -> None:
        self._exchange.leave(rank)

    def _exchange_models(self) -> None:
        with self._lock:
            offered = self._exchange.offer(time.monotonic_ns()) if self._owes_exchange else None
        if offered is not None:
            self._owes_exchange = False
            self._send(OFFER, offered)

    def _hear(self, message: Message) -> None:
        assert message.tensor is not None
        answer: Parcel | None = None
        with self._lock:
            if message.kind == OFFER:
                answer = self._exchange.hear_offer(message.sender, message.version, message.tensor)
            else:
                self._exchange.hear_answer(message.version, message.tensor)
        if answer is not None:
            self._send(ANSWER, answer)

    def _send(self, kind: int, parcel: Parcel) -> None:
        self._peers.send(parcel.rank, Message(kind, parcel.number, (), parcel.model))
