"""Partial all-reduce: whoever has finished a step averages its model with others who have, in a
small group, and waits for nobody else.

Q. Luo et al., "Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized Training",
ASPLOS 2020: groups by a generator. X. Miao et al., "Heterogeneity-Aware Distributed Machine
Learning Training via Partial Reduce", SIGMOD 2021: groups of those who are ready, and joined where
they would keep apart.
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
from laggard.workloads.strategies.peers import BESIDE_WAIT_S, WAIT_S, Standing
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message


class PartialReduce(AmongPeers):
    """x_i <- x_i - lr * g_i(x_i), then the mean of its group's models (see group_member.py).

    A thread of its own speaks with the others, so that the generator answers at once while its rank
    computes.

    Args:
        parameters: size of the groups, and when they must mix.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: PartialReduceParameters, seat: Seat) -> None:
        super().__init__(seat)
        self._parameters = parameters
        self._member, self._there = self._meet_those_present()
        self._standing: Standing = (0, self._state.read().cpu())
        self._asked: torch.Tensor | None = None
        self._outcome: Outcome | None = None
        self._known = threading.Event()
        self._is_beside = False
        self._peers.resident = self

    def join(self) -> None:
        """Take up the model of one who is there, and begin with the step that it is in (see
        `OwnPaceStrategy`).
        """
        self._standing = self._peers.join() or self._standing
        self._step, model = self._standing
        self._member, self._there = self._meet_those_present()
        self._state.write(model.to(self._seat.device))

    def standing(self) -> Standing:
        """The next step, and the model after the last (see `Resident`)."""
        return self._standing

    def admit(self, rank: int, step: int) -> None:  # noqa: ARG002 - its steps are its own
        """It may be in groups from now on (see `Resident`)."""
        self._there.add(rank)
        self._member.admit(rank, self._peers.session_of(rank), time.monotonic_ns())

    def _meet_those_present(self) -> tuple[GroupMember, set[int]]:
        there, parameters = set(self._peers.present), self._parameters
        sessions = {
            rank: self._peers.session_of(rank) for rank in sorted(there | {self._seat.rank})
        }
        return GroupMember(self._seat.rank, sessions, parameters.group, parameters.rounds), there

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Forward, backward, update, and average with a group (see `OwnPaceStrategy`)."""
        recorder = self._seat.recorder
        if not self._is_beside:
            self._is_beside = True
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
        self._standing = (self._step, mine if outcome is None else outcome.model)
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
        """Until it was told of its group this rank waited for who joined last; what is left was the
        averaging. Returns whom it waited for.
        """
        if outcome is None:
            return NOBODY
        recorder, told_ns = self._seat.recorder, max(outcome.told_ns, since_ns)
        recorder.enter(Phase.COMM, peer=outcome.waited_for, at_ns=since_ns)
        recorder.enter(Phase.COMM, payload_bytes=outcome.payload_bytes, at_ns=told_ns)
        return outcome.waited_for

    def _take_turn(self) -> None:
        """What the thread beside does: it hears, notes who is gone, and asks for a group where one
        is wanted.
        """
        self._peers.listen(self._hear, BESIDE_WAIT_S)
        for rank in self._there - self._peers.present:
            self._there.remove(rank)
            self._member.leave(rank, time.monotonic_ns())
        if self._asked is not None and self._peers.is_known:
            asked, self._asked = self._asked, None
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
