"""DiLoCo: many inner steps of every rank by itself, then one outer step along the mean of what they
moved.

A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
arXiv:2311.08105, algorithm 1. The inner optimizer is the workload's (the paper's: AdamW), the outer
one Nesterov's momentum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.span_schema import Phase
from laggard.workloads.specification.section import StepCount
from laggard.workloads.strategies.base.local_gradient import LocalGradient
from laggard.workloads.strategies.base.parameters import BalancedParameters, CompressibleParameters
from laggard.workloads.strategies.base.sample_weights import SampleWeights
from laggard.workloads.strategies.collective.compressed_deltas import CompressedDeltaAverage
from laggard.workloads.strategies.collective.synchronization import find_next_synchronization
from laggard.workloads.tracing.step_result import StepResult

if TYPE_CHECKING:
    import torch

    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


class DiLoCoParameters(BalancedParameters, CompressibleParameters):
    """Ranks train by themselves; what they moved is averaged seldom, and an outer Nesterov step
    taken (Douillard et al. 2023).
    """

    reference: ClassVar[str] = "Douillard et al. 2023"
    summary: ClassVar[str] = (
        "the mean change of all models in `steps` inner steps becomes an outer step with "
        "Nesterov's momentum"
    )
    name: Literal["diloco"]
    steps: StepCount = Field(default=50, description="inner steps between two outer ones")
    outer_lr: float = Field(default=0.7, gt=0, le=10, allow_inf_nan=False)
    outer_momentum: float = Field(default=0.9, ge=0, lt=1)

    def create_worker(self, context: TrainingContext) -> DiLoCo:
        """Create one rank's side (see `Parameters`)."""
        return DiLoCo(self, context)


class DiLoCo:
    """Every H steps: D <- (1/K) * sum of (W - w_k); W <- OuterOpt(W, D); w_k <- W.

    Args:
        parameters: H, the outer step's size and momentum, and what moves are compressed with.
        context: what this rank trains with.
    """

    def __init__(self, parameters: DiLoCoParameters, context: TrainingContext) -> None:
        import torch

        from laggard.workloads.compress.codec import create_vector_codec
        from laggard.workloads.models.flat_state import FlatState

        self.model, self.optimizer = context.model, context.optimizer
        self._parameters, self._context = parameters, context
        self._gradient = LocalGradient(context)
        self._state = FlatState(context.model)
        codec, synchronize = create_vector_codec(parameters.compress), self._gradient.synchronize
        self._weights = SampleWeights(
            by_samples=codec is None and parameters.balanced_batches is not None
        )
        self._compressed = (
            None
            if codec is None
            else CompressedDeltaAverage(
                codec, context, self._state.parameters, synchronize, context.world_size
            )
        )
        self._outer_parameters = torch.nn.Parameter(self._state.read()[: self._state.parameters])
        self._outer_optimizer = torch.optim.SGD(
            [self._outer_parameters],
            lr=parameters.outer_lr,
            momentum=parameters.outer_momentum,
            nesterov=parameters.outer_momentum > 0,
        )

    @property
    def weight(self) -> float:
        """Weight of this rank's model (see `Strategy`)."""
        return self._weights.weight

    def next_synchronization(self, step: int) -> int:
        """The next outer step (see `Strategy`)."""
        return find_next_synchronization(step, self._parameters.steps, self._context.last_step)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Forward, backward, update; then perhaps an outer step (see `Strategy`)."""
        loss = self._gradient.learn(batch, share, self._weights.loss_scale(share))
        self._weights.add_samples(share)
        if self.next_synchronization(step) == step:
            self._outer_step()
        self._context.recorder.enter(Phase.OTHER)
        return StepResult(loss)

    def _outer_step(self) -> None:
        import torch

        count = self._state.parameters
        deltas = self._state.read()
        deltas[:count] = self._outer_parameters.detach() - deltas[:count]
        deltas = (
            self._mean(deltas) if self._compressed is None else self._compressed.mean(deltas, 0)
        )
        self._outer_parameters.grad = deltas[:count]
        self._outer_optimizer.step()
        self._state.write(torch.cat([self._outer_parameters.detach(), deltas[count:]]))
        self._gradient.synchronize()

    def _mean(self, deltas: torch.Tensor) -> torch.Tensor:
        import torch.distributed as dist

        mine = self._weights.apply_weight(deltas)
        self._gradient.synchronize()
        self._context.recorder.enter(Phase.COMM, group=0, payload_bytes=mine.nbytes)
        dist.all_reduce(mine)
        self._gradient.synchronize()
        self._context.recorder.enter(Phase.OPTIMIZER)
        return self._weights.mean(mine, self._context.world_size)
