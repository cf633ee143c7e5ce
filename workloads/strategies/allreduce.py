"""Synchronous data parallelism: every step averages all ranks' gradients (torch DistributedDataParallel, untouched).

S. Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", VLDB 2020.
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from laggard.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.partition import Share
from laggard.workloads.tracing.ddp_timing import ObservedDDP, broadcast_bytes, observe_buckets, on_backward_computed
from laggard.workloads.tracing.device_clock import device_clock
from laggard.workloads.tracing.recorder import Recorder

HOST = torch.device("cpu")


class AllReduce:
    """w <- w - lr * (1/N) * sum of the gradients of all N samples of the batch, wherever they were computed.

    Args:
        model: the same on all ranks, on its device.
        optimizer: of its parameters.
        recorder: told of every phase.
        trace_buckets: also record every gradient bucket.
        device: where the model is, and batches will be.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        recorder: Recorder,
        *,
        trace_buckets: bool = False,
        device: torch.device = HOST,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._recorder = recorder
        self._clock = device_clock(device)
        self._ddp = ObservedDDP(model, device_ids=[device.index] if device.type == "cuda" else None)
        self._ddp.listener = self
        self._buffer_bytes = broadcast_bytes(self._ddp)
        self._gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        self._computed = 0
        if trace_buckets:
            observe_buckets(self._ddp, recorder, time.monotonic_ns)

    def step(self, batch: Batch, share: Share) -> float:
        """Forward, backward, average, update (see `Strategy`)."""
        counted = len(share.indices)
        self._computed = len(batch.labels)
        if self._buffer_bytes:
            self._recorder.enter(Phase.OTHER)
        else:
            self._recorder.enter(Phase.FORWARD, work=self._computed)
        logits = self._ddp(batch.inputs)
        summed = cross_entropy(logits[:counted], batch.labels[:counted], reduction="sum")
        loss = summed * share.loss_scale
        on_backward_computed(loss, self._gradients_computed)
        self._clock.settle()
        self._recorder.enter(Phase.BACKWARD, work=self._computed)
        loss.backward()  # type: ignore[no-untyped-call]
        self._clock.settle()
        self._recorder.enter(Phase.OPTIMIZER)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._clock.settle()
        self._recorder.enter(Phase.OTHER)
        return summed.item() / counted if counted else float("nan")

    def _gradients_computed(self) -> None:
        group = 1 if self._buffer_bytes else 0
        self._clock.settle()
        self._recorder.enter(Phase.COMM, group=group, payload_bytes=self._gradient_bytes)

    def broadcast_begins(self) -> None:
        """DDP begins to fetch the buffers of rank 0."""
        self._recorder.enter(Phase.COMM, group=0, payload_bytes=self._buffer_bytes)

    def broadcast_ends(self) -> None:
        """DDP has them; what follows is this rank's own forward pass."""
        self._clock.settle()
        self._recorder.enter(Phase.FORWARD, work=self._computed)
