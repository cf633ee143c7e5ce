"""Synchronous data parallelism: every step averages the gradients of all ranks.

It is torch's DistributedDataParallel, unchanged except for hooks. S. Li et al., "PyTorch
Distributed: experiences on accelerating data parallel training", VLDB 2020.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.rules.synchronization import SynchronizesEveryStep
from laggard.core.span_schema import Phase
from laggard.workloads.compress.parameters import COMPRESSION_NAMES
from laggard.workloads.strategies.base.parameters import BalancedParameters, CompressibleParameters
from laggard.workloads.tracing.step_result import StepResult

if TYPE_CHECKING:
    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


LOGGER = logging.getLogger(__name__)


class AllReduceParameters(BalancedParameters, CompressibleParameters):
    """Parameters of `allreduce`: every step averages the gradients of all ranks.

    It is torch's DistributedDataParallel (Li et al., VLDB 2020).
    """

    reference: ClassVar[str] = "Li et al., VLDB 2020"
    summary: ClassVar[str] = (
        "averages the gradients of all workers in every step, with torch's DistributedDataParallel"
    )
    compressions: ClassVar[tuple[str, ...]] = COMPRESSION_NAMES
    encodes_every_step: ClassVar[bool] = True
    resumable: ClassVar[bool] = True
    name: Literal["allreduce"] = "allreduce"
    trace_buckets: bool = Field(
        default=False, description="also record every gradient bucket; runs one hook per bucket"
    )

    def create_worker(self, context: TrainingContext) -> AllReduce:
        """Create one rank's side (see `Parameters`)."""
        return AllReduce(self, context)


class AllReduce(SynchronizesEveryStep):
    """Worker of `allreduce`: w <- w - lr * (1/N) * (sum of the gradients of all N samples).

    The N samples are those of the whole batch, on all ranks.

    Args:
        parameters: compression, and whether to record buckets.
        context: training context of the rank.
    """

    def __init__(self, parameters: AllReduceParameters, context: TrainingContext) -> None:
        from laggard.workloads.compress.ddp_hooks import bucket_cap_mb, create_bucket_hook
        from laggard.workloads.tracing.ddp_timing import (
            ObservedDDP,
            broadcast_bytes,
            have_buckets_reduced,
        )
        from laggard.workloads.tracing.device_clock import device_clock

        model, device = context.model, context.device
        self.model, self.optimizer = model, context.optimizer
        self._recorder = context.recorder
        self._clock = device_clock(device)
        self._ddp = ObservedDDP(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            init_sync=not context.same_model,
            bucket_cap_mb=bucket_cap_mb(parameters.compress),
        )
        self._ddp.listener = self
        self._buffer_bytes = broadcast_bytes(self._ddp)
        self._gradient_bytes = sum(
            p.numel() * p.element_size() for p in model.parameters() if p.requires_grad
        )
        self._computed_samples = self._sent_bytes = 0
        traces = parameters.trace_buckets and context.backend == "gloo"
        self._hook = (
            create_bucket_hook(parameters.compress)
            if traces or parameters.compress is not None
            else None
        )
        if self._hook is not None:
            have_buckets_reduced(
                self._ddp, self._hook, context.recorder if traces else None, time.monotonic_ns
            )
        if parameters.trace_buckets and not traces:
            LOGGER.warning(
                "trace_buckets has no effect: NCCL does not report to the host when it has reduced"
                " a gradient bucket"
            )

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Run forward pass, backward pass with averaging, and update (see `Strategy`)."""
        from torch.nn.functional import cross_entropy

        from laggard.workloads.tracing.ddp_timing import on_backward_computed

        counted = len(share.indices)
        self._computed_samples = len(batch.labels)
        # With buffers, DDP broadcasts those of rank 0 before the forward pass: that is collective 0
        # of the step, and the average of the gradients is collective 1.
        if self._buffer_bytes:
            self._recorder.enter(Phase.OTHER)
        else:
            self._recorder.enter(Phase.FORWARD, work=self._computed_samples)
        logits = self._ddp(batch.inputs)
        summed = cross_entropy(logits[:counted], batch.labels[:counted], reduction="sum")
        # DDP averages over ranks; the scale turns that into the mean over the batch's samples.
        loss = summed * share.loss_scale
        on_backward_computed(loss, self._on_gradients_computed)
        self._clock.synchronize()
        self._recorder.enter(Phase.BACKWARD, work=self._computed_samples)
        loss.backward()  # type: ignore[no-untyped-call]
        self._clock.synchronize()
        self._recorder.enter(Phase.OPTIMIZER)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._clock.synchronize()
        self._recorder.enter(Phase.OTHER)
        mean = summed.item() / counted if counted else float("nan")
        return StepResult(mean, read_version=step, applied_version=step + 1)

    def _on_gradients_computed(self) -> None:
        group = 1 if self._buffer_bytes else 0
        self._clock.synchronize()
        self._recorder.enter(Phase.COMM, group=group, payload_bytes=self._payload_bytes())

    def _payload_bytes(self) -> int:
        """Return the bytes that the step whose gradients have just been computed sends.

        By then DDP has handed over every bucket, so the hook has counted them all.
        """
        if self._hook is None:
            return self._gradient_bytes
        before, self._sent_bytes = self._sent_bytes, self._hook.sent_bytes
        return self._sent_bytes - before

    def broadcast_begins(self) -> None:
        """Record that DDP begins to fetch the buffers of rank 0."""
        self._recorder.enter(Phase.COMM, group=0, payload_bytes=self._buffer_bytes)

    def broadcast_ends(self) -> None:
        """Record that DDP has the buffers; this rank's own forward pass follows."""
        self._clock.synchronize()
        self._recorder.enter(Phase.FORWARD, work=self._computed_samples)
