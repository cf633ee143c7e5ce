"""Local SGD: ranks train on their own, and every H steps their models become their mean.

T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, "Don't use large mini-batches, use local SGD", ICLR
2020. With the parameter `after` it is the paper's post-local SGD.
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
    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


class LocalSGDParameters(BalancedParameters, CompressibleParameters):
    """Parameters of `local_sgd`: ranks train on their own and average their models periodically.

    With `after`, it is post-local SGD (Lin et al., ICLR 2020).
    """

    reference: ClassVar[str] = "Lin et al., ICLR 2020"
    summary: ClassVar[str] = (
        "each worker trains on its own; all models are averaged every `steps` steps, and "
        "in each of the first `after` steps"
    )
    name: Literal["local_sgd"]
    steps: StepCount = Field(default=8, description="steps between two averages of all models")
    after: int = Field(
        default=0,
        ge=0,
        description="number of first steps that each end with an average of all models",
    )

    def create_worker(self, context: TrainingContext) -> LocalSGD:
        """Create one rank's side (see `Parameters`)."""
        return LocalSGD(self, context)


class LocalSGD:
    """Worker of `local_sgd`: w_k <- w_k - lr * g_k in every step, then perhaps the mean.

    In every H-th step and in the last one, w_k <- (1/K) * (sum of all w_k). With compression, the
    new mean is the last mean plus the mean of the changes that ranks have sent. A change that
    compression omits is sent with a later average.

    Args:
        parameters: H (`steps`), start of the local steps (`after`), and compression of the
            changes.
        context: training context of the rank.
    """

    def __init__(self, parameters: LocalSGDParameters, context: TrainingContext) -> None:
        from laggard.workloads.compress.codec import create_vector_codec
        from laggard.workloads.models.flat_state import FlatState

        self.model, self.optimizer = context.model, context.optimizer
        self._context = context
        self._synchronization = PeriodicSynchronization(
            parameters.steps, context.last_step, parameters.after
        )
        self._gradient = LocalGradient(context)
        self._state = FlatState(context.model)
        codec = create_vector_codec(parameters.compress)
        # Compressed averages divide by the number of ranks, so they cannot weight by samples.
        self._weights = SampleWeights(
            by_samples=codec is None and parameters.balanced_batches is not None
        )
        if codec is None:
            self._synchronize_models = self._average
            return
        count, synchronize = self._state.parameters, self._gradient.synchronize
        # The initial model is the same on all ranks, so it is their first mean.
        self._last_mean = self._state.read()[:count]
        self._compressed = CompressedDeltaAverage(
            codec, context, count, synchronize, context.world_size
        )
        self._synchronize_models = self._average_deltas

    @property
    def weight(self) -> float:
        """Weight of this rank's model (see `Strategy`)."""
        return self._weights.weight

    def next_synchronization(self, step: int) -> int:
        """Return the next step that ends with an average (see `Strategy`)."""
        return self._synchronization.next(step)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Run forward pass, backward pass and update, and an average if due (see `Strategy`)."""
        loss = self._gradient.learn(batch, share, self._weights.loss_scale(share))
        self._weights.add_samples(share)
        if self._synchronization.is_due(step):
            self._synchronize_models()
        self._context.recorder.enter(Phase.OTHER)
        return StepResult(loss)

    def _average(self) -> None:
        import torch.distributed as dist

        mine = self._weights.apply_weight(self._state.read())
        self._gradient.synchronize()
        self._context.recorder.enter(Phase.COMM, group=0, payload_bytes=mine.nbytes)
        dist.all_reduce(mine)
        self._gradient.synchronize()
        self._context.recorder.enter(Phase.OPTIMIZER)
        self._state.write(self._weights.mean(mine, self._context.world_size))
        self._gradient.synchronize()

    def _average_deltas(self) -> None:
        import torch

        count, vector = self._state.parameters, self._state.read()
        vector[:count] -= self._last_mean
        mean = self._compressed.mean(vector, 0)
        self._last_mean += mean[:count]
        self._state.write(torch.cat([self._last_mean, mean[count:]]))
        self._gradient.synchronize()
