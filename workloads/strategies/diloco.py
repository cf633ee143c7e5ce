"""DiLoCo: many inner steps of every rank by itself, then one outer step along the mean of what they
moved.

A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
arXiv:2311.08105, algorithm 1. The inner optimizer is the workload's (the paper's: AdamW), the outer
one Nesterov's momentum.
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
from laggard.workloads.strategies.parameters import DiLoCoParameters
from laggard.workloads.strategies.sample_weights import SampleWeights
from laggard.workloads.strategies.strategy import Seat


class DiLoCo:
    """Every H steps: D <- (1/K) * sum of (W - w_k); W <- OuterOpt(W, D); w_k <- W.

    Args:
        parameters: H, the outer step's size and momentum, and what moves are compressed with.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: DiLoCoParameters, seat: Seat) -> None:
        self.model, self.optimizer = seat.model, seat.optimizer
        self._parameters, self._seat = parameters, seat
        self._gradient = LocalGradient(seat)
        self._state = FlatState(seat.model)
        codec, settle = vector_codec(parameters.compress), self._gradient.settle
        self._weights = SampleWeights(
            by_samples=codec is None and parameters.balanced_batches is not None
        )
        self._compressed = (
            None
            if codec is None
            else CompressedMeeting(codec, seat, self._state.parameters, settle, seat.world_size)
        )
        self._shared = torch.nn.Parameter(self._state.read()[: self._state.parameters])
        self._outer = torch.optim.SGD(
            [self._shared],
            lr=parameters.outer_lr,
            momentum=parameters.outer_momentum,
            nesterov=parameters.outer_momentum > 0,
        )

    @property
    def weight(self) -> float:
        """How much this rank's model counts (see `Strategy`)."""
        return self._weights.weight

    def meets(self, step: int) -> int:
        """The next outer step (see `Strategy`)."""
        return next_meeting(step, self._parameters.steps, self._seat.last_step)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Forward, backward, update; then perhaps an outer step (see `Strategy`)."""
        loss = self._gradient.learn(batch, share, self._weights.loss_scale(share))
        self._weights.took(share)
        if self.meets(step) == step:
            self._outer_step()
        self._seat.recorder.enter(Phase.OTHER)
        return Learnt(loss)

    def _outer_step(self) -> None:
        count = self._state.parameters
        moved = self._state.read()
        moved[:count] = self._shared.detach() - moved[:count]
        moved = self._mean(moved) if self._compressed is None else self._compressed.mean(moved, 0)
        self._shared.grad = moved[:count]
        self._outer.step()
        self._state.write(torch.cat([self._shared.detach(), moved[count:]]))
        self._gradient.settle()

    def _mean(self, moved: torch.Tensor) -> torch.Tensor:
        mine = self._weights.weigh(moved)
        self._gradient.settle()
        self._seat.recorder.enter(Phase.COMM, group=0, payload_bytes=mine.nbytes)
        dist.all_reduce(mine)
        self._gradient.settle()
        self._seat.recorder.enter(Phase.OPTIMIZER)
        return self._weights.mean(mine, self._seat.world_size)
