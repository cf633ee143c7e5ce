"""Hop: decentralised training that bears slow workers, by models that may be old, neighbours that
are not waited for, and steps left out.

Q. Luo, J. Lin, Y. Zhuo, X. Qian, "Hop: Heterogeneity-aware Decentralized Training", ASPLOS 2019;
the rules are in hop_rule.py.
"""

from __future__ import annotations

import torch

from laggard.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.among_peers import RuledAmongPeers
from laggard.workloads.strategies.arrivals import Arrivals
from laggard.workloads.strategies.hop_rule import Ending, HopRule
from laggard.workloads.strategies.parameters import HopParameters
from laggard.workloads.strategies.peers import stamped
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message

BEGUN = 2
"""Version: the step that the sender has begun, with this model if there is one."""


class Hop(RuledAmongPeers):
    """x_i <- weighted mean of the own model and those that are there, then - lr * g_i(x_i before).

    With no staleness and no backups it is `Gossip`, bit for bit. Who is behind all its neighbours
    leaves steps out; its gradient counts all the same. In `steps.parquet`, staleness is by how many
    steps the oldest model that went into the average was behind, or the own gradient after a jump.

    Args:
        parameters: graph and bounds.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: HopParameters, seat: Seat) -> None:
        self._rule: HopRule[torch.Tensor] = HopRule(seat.rank, seat.world_size, parameters)
        super().__init__(seat, self._rule)
        self._arrivals = Arrivals(self._peers, seat.recorder)
        self._peers.resident = self
        self._left_out = 0

    def admit(self, rank: int, step: int) -> None:  # noqa: ARG002 - it will tell its neighbours itself
        """Take it into the graph (see `Resident`)."""
        self._rule.join(rank)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Send, forward, backward, wait as long as must be, average, update (see
        `OwnPaceStrategy`).
        """
        assert step == self._rule.step
        recorder, skipped = self._seat.recorder, self._left_out
        self._mine = self._state.read().cpu()
        self._tell()
        loss = self._gradient.compute(batch, share)
        may_end, waited_for = self._arrivals.wait(self._may_end, self._hear)
        recorder.enter(Phase.OPTIMIZER)
        staleness = 0
        if may_end:
            ending = self._rule.end()
            staleness, self._left_out = ending.staleness, ending.skipped
            self._mix(ending)
        self.optimizer.step()
        self._gradient.settle()
        recorder.enter(Phase.OTHER)
        return Learnt(loss, staleness=staleness, skipped=skipped, waited_for=waited_for)

    def _tell(self) -> None:
        self._note_losses()
        for notice in self._rule.notices():
            model = self._mine if notice.with_model else None
            self._peers.send(notice.rank, stamped(BEGUN, self._rule.step, model))

    def _hear(self, message: Message) -> None:
        self._rule.hear(message.sender, message.version, message.tensor)

    def _may_end(self) -> bool:
        self._tell()
        return self._rule.may_end()

    def _note_losses(self) -> None:
        for rank in set(range(self._seat.world_size)) - self._peers.present - {self._seat.rank}:
            self._rule.leave(rank)

    def _mix(self, ending: Ending[torch.Tensor]) -> None:
        mixed = self._mine * ending.weights[self._seat.rank]
        for rank, model in sorted(ending.models.items()):
            mixed += model * ending.weights[rank]
        self._state.write_average(mixed, self._mine)
