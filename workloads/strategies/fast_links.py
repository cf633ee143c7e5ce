"""Decentralised training over unequal links: each rank averages its model with one other in each
step, often over fast links, seldom over slow ones.

P. Zhou et al., "Communication-efficient Decentralized Machine Learning over Heterogeneous Networks"
(NetMax), ICDE 2021, with the pairs of SAPS-PSGD (Z. Tang et al., ICDCS 2020): see link_policy.py
for how often, and fast_links_rule.py for how ranks agree.
"""

from __future__ import annotations

import time

import torch

from laggard.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.among_peers import RuledAmongPeers
from laggard.workloads.strategies.arrivals import Arrivals
from laggard.workloads.strategies.fast_links_rule import FastLinksRule, Send, Word
from laggard.workloads.strategies.link_times import LinkTimes
from laggard.workloads.strategies.parameters import FastLinksParameters
from laggard.workloads.strategies.peers import stamped
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message


class FastLinks(RuledAmongPeers):
    """x_i <- (x_i + x_j) / 2 with the partner j of this step, then - lr * g_i(x_i before).

    Models travel while the gradient is computed, and a rank waits for its partner of this step and
    for nobody else. All take the same steps, so that in the long run nobody is faster than the
    slowest computer: it is links that are chosen here.

    Args:
        parameters: of the policy.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: FastLinksParameters, seat: Seat) -> None:
        self._rule: FastLinksRule[torch.Tensor] = FastLinksRule(
            seat.rank, seat.world_size, parameters, seat.seed
        )
        super().__init__(seat, self._rule)
        self._arrivals, self._times = (
            Arrivals(self._peers, seat.recorder),
            LinkTimes(seat.world_size),
        )
        self._row = torch.empty(0)
        self._peers.resident = self

    def admit(self, rank: int, step: int) -> None:
        """Tell it what was measured that it needs (see `Resident`)."""
        for told, row in self._rule.join(rank, step):
            self._peers.send(rank, stamped(Word.MEASURED.value, told, torch.from_numpy(row)))

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Send, forward, backward, wait for the partner, average, update (see
        `OwnPaceStrategy`).
        """
        assert step == self._rule.step
        recorder, row = self._seat.recorder, self._times.row
        self._mine, self._row = self._state.read().cpu(), torch.from_numpy(row)
        self._note_losses()
        self._send(self._rule.begin(row))
        began_ns = time.monotonic_ns()
        loss = self._gradient.compute(batch, share)
        self._times.computed((time.monotonic_ns() - began_ns) / 1e9)
        may_end, waited_for = self._arrivals.wait(self._may_end, self._hear)
        recorder.enter(Phase.OPTIMIZER)
        theirs = self._rule.end() if may_end else None
        if theirs is not None:
            self._state.write_average((self._mine + theirs) / 2, self._mine)
        self.optimizer.step()
        self._gradient.settle()
        recorder.enter(Phase.OTHER)
        return Learnt(loss, waited_for=waited_for)

    def _send(self, sends: tuple[Send, ...]) -> None:
        tensors = {Word.OFFER: self._mine, Word.REFUSAL: None, Word.MEASURED: self._row}
        for send in sends:
            self._peers.send(send.rank, stamped(send.word.value, send.step, tensors[send.word]))

    def _hear(self, message: Message) -> None:
        word, rank, step = Word(message.kind), message.sender, message.version
        if word is Word.REFUSAL:
            self._rule.hear_refusal(rank, step)
            return
        assert message.tensor is not None
        if word is Word.MEASURED:
            self._rule.hear_measured(rank, step, message.tensor.numpy())
            return
        took_s = (time.monotonic_ns() - message.values[0]) / 1e9
        self._times.came(rank, took_s, unseen=self._arrivals.unseen)
        self._send(self._rule.hear_offer(rank, step, message.tensor))

    def _may_end(self) -> bool:
        self._note_losses()
        return self._rule.may_end()

    def _note_losses(self) -> None:
        for rank in set(range(self._seat.world_size)) - self._peers.present - {self._seat.rank}:
            self._rule.leave(rank)
