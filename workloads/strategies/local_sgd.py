"""Local SGD: ranks train by themselves, and every H steps their models become their mean.

T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, "Don't use large mini-batches, use local SGD", ICLR
2020: with `after`, post-local SGD.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from laggard.span_schema import Phase
from laggard.workloads.compress.codec import vector_codec
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.compressed_meeting import CompressedMeeting
from laggard.workloads.strategies.flat_state import FlatState
from laggard.workloads.strategies.local_gradient import LocalGradient
from laggard.workloads.strategies.meeting import next_meeting
from laggard.workloads.strategies.parameters import LocalSGDParameters
from laggard.workloads.strategies.sample_weights import SampleWeights
from laggard.workloads.strategies.strategy import Seat


class LocalSGD:
    """w_k <- w_k - lr * g_k in every step; w_k <- (1/K) * sum of all w_k in every H-th one, and in
    the last.

    Compressed, the mean is the last one plus the mean of what ranks say they have moved since; what
    they leave out they say later.

    Args:
        parameters: H, when it begins, and what moves are compressed with.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: LocalSGDParameters, seat: Seat) -> None:
        self.model, self.optimizer = seat.model, seat.optimizer
        self._parameters, self._seat = parameters, seat
        self._gradient = LocalGradient(seat)
        self._state = FlatState(seat.model)
        codec = vector_codec(parameters.compress)
        self._weights = SampleWeights(
            by_samples=codec is None and parameters.balanced_batches is not None
        )
        if codec is None:
            self._meet = self._average
            return
        count, settle = self._state.parameters, self._gradient.settle
        self._agreed = self._state.read()[:count]
        self._compressed = CompressedMeeting(codec, seat, count, settle, seat.world_size)
        self._meet = self._average_moves

    @property
    def weight(self) -> float:
        """How much this rank's model counts (see `Strategy`)."""
        return self._weights.weight

    def meets(self, step: int) -> int:
        """The next step with an average (see `Strategy`)."""
        if step < self._parameters.after:
            return step
        return next_meeting(step, self._parameters.steps, self._seat.last_step)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Forward, backward, update; then perhaps average (see `Strategy`)."""
        loss = self._gradient.learn(batch, share, self._weights.loss_scale(share))
        self._weights.took(share)
        if self.meets(step) == step:
            self._meet()
        self._seat.recorder.enter(Phase.OTHER)
        return Learnt(loss)

    def _average(self) -> None:
        mine = self._weights.weigh(self._state.read())
        self._gradient.settle()
        self._seat.recorder.enter(Phase.COMM, group=0, payload_bytes=mine.nbytes)
        dist.all_reduce(mine)
        self._gradient.settle()
        self._seat.recorder.enter(Phase.OPTIMIZER)
        self._state.write(self._weights.mean(mine, self._seat.world_size))
        self._gradient.settle()

    def _average_moves(self) -> None:
        count, vector = self._state.parameters, self._state.read()
        vector[:count] -= self._agreed
        mean = self._compressed.mean(vector, 0)
        self._agreed += mean[:count]
        self._state.write(torch.cat([self._agreed, mean[count:]]))
        self._gradient.settle()
