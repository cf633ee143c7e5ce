"""Decentralised parallel SGD: no server and no collective, each rank averages its model with its
neighbours'.

X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for
Decentralized Parallel Stochastic Gradient Descent", NIPS 2017, algorithm 1.
"""

from __future__ import annotations

import torch

from laggard.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.among_peers import AmongPeers
from laggard.workloads.strategies.graph import mixing_weights, neighbours
from laggard.workloads.strategies.parameters import GossipParameters
from laggard.workloads.strategies.peers import Standing, stamped
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message

MODEL = 2
"""Version: the step that the sender is in."""


class Gossip(AmongPeers):
    """x_i <- sum over neighbours j of W_ij x_j, then - lr * g_i(x_i before); W is symmetric and its
    rows sum to 1.

    Models are sent before the gradient is computed, so that they travel meanwhile. Where a rank is
    lost or joins, the graph is made anew of those who are there; then a neighbour's model may be of
    a later step than one's own.

    Args:
        parameters: the graph.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: GossipParameters, seat: Seat) -> None:
        super().__init__(seat)
        self._graph = parameters.graph
        self._heard: dict[int, list[Message]] = {rank: [] for rank in range(seat.world_size)}
        self._told: set[int] = set()
        self._mine = torch.empty(0)
        self._peers.resident = self

    def join(self) -> None:
        """Take up the model of one who is there, and begin with the step that it is in (see
        `OwnPaceStrategy`).
        """
        standing = self._peers.join()
        if standing is not None:
            self._step, model = standing
            self._state.write(model.to(self._seat.device))

    def standing(self) -> Standing:
        """This step, and the model that it began with (see `Resident`)."""
        return self._step, self._mine

    def admit(self, rank: int, step: int) -> None:  # noqa: ARG002 - whichever step it is, its model of a later one is taken too
        """Tell it of this step, if it is a neighbour (see `Resident`)."""
        self._heard[rank].clear()
        self._told.discard(rank)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Send, forward, backward, wait for the neighbours, average, update (see
        `OwnPaceStrategy`).
        """
        recorder = self._seat.recorder
        mine = self._mine = self._state.read().cpu()
        self._told = set()
        self._tell(mine)
        loss = self._gradient.compute(batch, share)
        since_ns = recorder.enter(Phase.COMM)
        complete = self._peers.wait(lambda: self._all_heard(mine), self._hear)
        models = (
            sorted((self._heard[rank][0] for rank in self._neighbours()), key=_sent_ns)
            if complete
            else []
        )
        waited_for = self._peers.tell_wait(since_ns, models)
        recorder.enter(Phase.OPTIMIZER)
        if complete:
            self._mix(mine, models)
        self.optimizer.step()
        self._gradient.settle()
        recorder.enter(Phase.OTHER)
        self._step = step + 1
        return Learnt(loss, waited_for=waited_for)

    def _neighbours(self) -> tuple[int, ...]:
        there = sorted({self._seat.rank, *self._peers.present})
        return neighbours(self._graph, there, self._seat.rank)

    def _tell(self, mine: torch.Tensor) -> None:
        for rank in set(self._neighbours()) - self._told:
            self._told.add(rank)
            self._peers.send(rank, stamped(MODEL, self._step, mine))

    def _hear(self, message: Message) -> None:
        self._heard[message.sender].append(message)

    def _all_heard(self, mine: torch.Tensor) -> bool:
        """Whether every neighbour's model of this step is there, or of a later one."""
        self._tell(mine)
        for rank in self._neighbours():
            self._heard[rank] = [
                message for message in self._heard[rank] if message.version >= self._step
            ]
        return all(self._heard[rank] for rank in self._neighbours())

    def _mix(self, mine: torch.Tensor, models: list[Message]) -> None:
        there = sorted({self._seat.rank, *self._peers.present})
        weights = mixing_weights(self._graph, there, self._seat.rank)
        mixed = mine * weights[self._seat.rank]
        for message in sorted(
            models, key=_sender
        ):  # not as they came, so that the same training gives the same sums
            assert message.tensor is not None
            mixed += message.tensor * weights[message.sender]
        self._state.write_average(mixed, mine)


def _sender(message: Message) -> int:
    return message.sender


def _sent_ns(message: Message) -> int:
    return message.values[0]
