"""DiLoCo: many inner steps on each rank, then one outer step along the mean change.

A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
arXiv:2311.08105, algorithm 1. The inner optimizer is the workload's (AdamW in the paper). The
outer optimizer is SGD with Nesterov momentum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.rules.synchronization import PeriodicSynchronization
from laggard.core.span_schema import Phase
from laggard.workloads.specification.section import StepCount
from laggard.workloads.strategies.base.local_gradient import LocalGradient
from laggard.workloads.strategies.base.parameters import BalancedParameters, CompressibleParameters
from laggard.workloads.strategies.base.sample_weights import SampleWeights
from laggard.workloads.strategies.collective.compressed_deltas import CompressedDeltaAverage
from laggard.workloads.tracing.step_result import StepResult

if TYPE_CHECKING:
    import torch

    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


class DiLoCoParameters(BalancedParameters, CompressibleParameters):
    """Parameters of `diloco`: ranks train on their own between rare outer steps.

    An outer step follows the mean change of all models with Nesterov momentum (Douillard et al.
    2023).
    """

    reference: ClassVar[str] = "Douillard et al. 2023"
    summary: ClassVar[str] = (
        "each worker takes `steps` inner steps on its own; then the mean change of all models "
        "drives one outer step with Nesterov momentum"
    )
    name: Literal["diloco"]
    steps: StepCount = Field(default=50, description="inner steps between two outer steps")
    outer_lr: float = Field(default=0.7, gt=0, le=10, allow_inf_nan=False)
    outer_momentum: float = Field(default=0.9, ge=0, lt=1)

    def create_worker(self, context: TrainingContext) -> DiLoCo:
        """Create one rank's side (see `Parameters`)."""
        return DiLoCo(self, context)


class DiLoCo:
    """Worker of `diloco`, with an outer step every H steps.

    D <- (1/K) * (sum of W - w_k over all ranks k); W <- OuterOpt(W, D); w_k <- W.

    Args:
        parameters: H (`steps`), learning rate and momentum of the outer step, and compression of
            the changes.
        context: training context of the rank.
    """

    def __init__(self, parameters: DiLoCoParameters, context: TrainingContext) -> None:
        import torch

        from laggard.workloads.compress.codec import create_vector_codec
        from laggard.workloads.models.flat_state import FlatState

        self.model, self.optimizer = context.model, context.optimizer
        self._context = context
        self._synchronization = PeriodicSynchronization(parameters.steps, context.last_step)
        self._gradient = LocalGradient(context)
        self._state = FlatState(context.model)
        codec, synchronize = create_vector_codec(parameters.compress), self._gradient.synchronize
        # Compressed averages divide by the number of ranks, so they cannot weight by samples.
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
        # A parameter of its own, so that torch's SGD can take the outer step. All ranks begin with
        # the same model, so it needs no broadcast.
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
        """Return the next step that ends with an outer step (see `Strategy`)."""
        return self._synchronization.next(step)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Run forward pass, backward pass and update, and an outer step if due (see `Strategy`)."""
        loss = self._gradient.learn(batch, share, self._weights.loss_scale(share))
        self._weights.add_samples(share)
        if self._synchronization.is_due(step):
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
        # The negative change acts as the gradient; buffers have no gradient and become their mean.
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
