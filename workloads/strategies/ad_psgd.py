"""Asynchronous decentralised parallel SGD: ranks average their models two by two in a thread beside the training, and wait for nobody.

X. Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018, algorithm 1, and the threads and the bipartite graph of its
section on implementation.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from laggard.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.among_peers import AmongPeers
from laggard.workloads.strategies.exchange import Exchange, Parcel, Reading
from laggard.workloads.strategies.parameters import ADPSGDParameters
from laggard.workloads.strategies.peers import WAIT_S
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message

OFFER, ANSWER = 2, 3
"""Version: the number of the exchange."""


class ADPSGD(AmongPeers):
    """x_i <- x_i - lr * g_i(x_i as it was read), and beside it x_i, x_j <- (x_i + x_j) / 2 for random pairs (see exchange.py).

    An active rank begins an exchange for each of its updates, or as many as there is time for. What is learnt from a model goes into the model as
    exchanges have made it meanwhile: their number is the staleness. The lock is held for no longer than two vectors are added.

    Args:
        parameters: graph and time-out.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: ADPSGDParameters, seat: Seat) -> None:
        super().__init__(seat)
        timeout_ns = round(parameters.timeout_s * seat.dilation * 1e9)
        chance = random.Random(torch.initial_seed())  # noqa: S311 - no secret
        mine = self._state.read().cpu()
        self._exchange = Exchange(seat.rank, seat.world_size, parameters.graph, timeout_ns, mine, chance)
        self._held = self._exchange.reading
        self._lock = threading.Lock()
        self._there = set(self._peers.present)
        self._owes_exchange = False

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Read, forward, backward, update, and have the next exchange begin (see `OwnPaceStrategy`)."""
        recorder = self._seat.recorder
        if step == 0:
            self._peers.beside(self._take_turn)
        recorder.enter(Phase.OTHER)
        with self._model_to_itself():
            read = self._exchange.reading
        self._hold(read)
        loss = self._gradient.learn(batch, share)
        recorder.enter(Phase.OTHER)
        learnt = self._state.read().cpu()
        with self._model_to_itself():
            after = self._exchange.learn(read, learnt)
        staleness = after.version - 1 - read.version
        if staleness:
            self._hold(after)
        else:
            self._held = after
        self._owes_exchange = True
        self._peers.wake()
        self._step = step + 1
        return Learnt(loss, read_version=read.version, applied_version=after.version, staleness=staleness)

    @contextmanager
    def _model_to_itself(self) -> Iterator[None]:
        """Only where the lock is taken is there communication to wait for."""
        if not self._lock.acquire(blocking=False):
            self._seat.recorder.enter(Phase.COMM)
            self._lock.acquire()
            self._seat.recorder.enter(Phase.OTHER)
        try:
            yield
        finally:
            self._lock.release()

    def _hold(self, reading: Reading) -> None:
        """Make the model that this rank computes with what was read."""
        if reading.version != self._held.version:
            self._state.write(reading.model.to(self._seat.device))
        self._held = reading

    def _take_turn(self) -> None:
        """What the thread beside does: it hears, notes who is gone, and begins an exchange if one is owed."""
        self._peers.listen(self._hear, WAIT_S)
        with self._lock:
            for rank in self._there - self._peers.present:
                self._there.remove(rank)
                self._exchange.leave(rank)
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
