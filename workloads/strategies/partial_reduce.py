"""Partial all-reduce: whoever has finished a step averages its model with others who have, in a small group, and waits for nobody else.

Q. Luo et al., "Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized Training", ASPLOS 2020: groups by a generator. X. Miao et al.,
"Heterogeneity-Aware Distributed Machine Learning Training via Partial Reduce", SIGMOD 2021: groups of those who are ready, and joined where they would
keep apart.
"""

from __future__ import annotations

import threading
import time

import torch

from laggard.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import NOBODY, Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.among_peers import AmongPeers
from laggard.workloads.strategies.group_member import GroupMember, Outcome
from laggard.workloads.strategies.parameters import PartialReduceParameters
from laggard.workloads.strategies.peers import WAIT_S
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message


class PartialReduce(AmongPeers):
    """x_i <- x_i - lr * g_i(x_i), then the mean of its group's models (see group_member.py).

    A thread of its own speaks with the others, so that the generator answers at once while its rank computes.

    Args:
        parameters: size of the groups, and when they must mix.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: PartialReduceParameters, seat: Seat) -> None:
        super().__init__(seat)
        self._member = GroupMember(seat.rank, seat.world_size, parameters.group, parameters.rounds)
        self._there = set(self._peers.present)
        self._asked: torch.Tensor | None = None
        self._outcome: Outcome | None = None
        self._known = threading.Event()

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Forward, backward, update, and average with a group (see `OwnPaceStrategy`)."""
        recorder = self._seat.recorder
        if step == 0:
            self._peers.beside(self._take_turn, tells_sends=False)
        loss = self._gradient.learn(batch, share)
        recorder.enter(Phase.OTHER)
        mine = self._state.read().cpu()
        since_ns = recorder.enter(Phase.COMM)
        outcome = self._average(mine)
        waited_for = self._tell(outcome, since_ns)
        recorder.enter(Phase.OTHER)
        if outcome is not None:
            self._state.write(outcome.model.to(self._seat.device))
        self._step = step + 1
        return Learnt(loss, waited_for=waited_for)

    def _average(self, mine: torch.Tensor) -> Outcome | None:
        """None where training is over first."""
        self._known.clear()
        self._asked = mine
        self._peers.wake()
        while not self._known.wait(WAIT_S):
            if self._peers.over:
                return None
        return self._outcome

    def _tell(self, outcome: Outcome | None, since_ns: int) -> int:
        """Until it was told of its group this rank waited for who joined last; what is left was the averaging. Returns whom it waited for."""
        if outcome is None:
            return NOBODY
        recorder, told_ns = self._seat.recorder, max(outcome.told_ns, since_ns)
        recorder.enter(Phase.COMM, peer=outcome.waited_for, at_ns=since_ns)
        recorder.enter(Phase.COMM, payload_bytes=outcome.payload_bytes, at_ns=told_ns)
        return outcome.waited_for

    def _take_turn(self) -> None:
        """What the thread beside does: it hears, notes who is gone, and asks for a group where one is wanted."""
        self._peers.listen(self._hear, WAIT_S)
        for rank in self._there - self._peers.present:
            self._there.remove(rank)
            self._member.leave(rank, time.monotonic_ns())
        asked, self._asked = self._asked, None
        if asked is not None:
            self._member.ask(asked, time.monotonic_ns())
        self._post()

    def _hear(self, message: Message) -> None:
        self._member.hear(message, time.monotonic_ns())
        self._post()

    def _post(self) -> None:
        while self._member.outbox:
            self._peers.send(*self._member.outbox.popleft())
        outcome = self._member.take_outcome()
        if outcome is not None:
            self._outcome = outcome
            self._known.set()
