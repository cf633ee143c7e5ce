"""Local SGD: ranks train by themselves, and every H steps their models become their mean.

T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020: with `after`, post-local SGD.
"""

from __future__ import annotations

import torch.distributed as dist

from laggard.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.flat_state import FlatState
from laggard.workloads.strategies.local_gradient import LocalGradient
from laggard.workloads.strategies.meeting import next_meeting
from laggard.workloads.strategies.parameters import LocalSGDParameters
from laggard.workloads.strategies.strategy import Seat


class LocalSGD:
    """w_k <- w_k - lr * g_k in every step; w_k <- (1/K) * sum of all w_k in every H-th one, and in the last.

    Args:
        parameters: H and when it begins.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: LocalSGDParameters, seat: Seat) -> None:
        self.model, self.optimizer = seat.model, seat.optimizer
        self._parameters, self._seat = parameters, seat
        self._gradient = LocalGradient(seat)
        self._state = FlatState(seat.model)

    def meets(self, step: int) -> int:
        """The next step with an average (see `Strategy`)."""
        if step < self._parameters.after:
            return step
        return next_meeting(step, self._parameters.steps, self._seat.last_step)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Forward, backward, update; then perhaps average (see `Strategy`)."""
        loss = self._gradient.learn(batch, share)
        if self.meets(step) == step:
            self._average()
        self._seat.recorder.enter(Phase.OTHER)
        return Learnt(loss)

    def _average(self) -> None:
        mine = self._state.read()
        self._gradient.settle()
        self._seat.recorder.enter(Phase.COMM, group=0, payload_bytes=self._state.bytes)
        dist.all_reduce(mine)
        self._gradient.settle()
        self._seat.recorder.enter(Phase.OPTIMIZER)
        self._state.write(mine / self._seat.world_size)
        self._gradient.settle()
