"""The workers' side of all strategies with a server: push a gradient, compressed or not, wait for
the model, which is whole.
"""

from __future__ import annotations

import enum
import time

from laggard.core.span_schema import NO_GROUP, Phase
from laggard.workloads.balancing.cost_monitor import CostMonitor
from laggard.workloads.compress.codec import ErrorFeedbackCodec, create_vector_codec
from laggard.workloads.compress.gradient_packer import GradientPacker
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Share
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.strategies.base.local_gradient import LocalGradient
from laggard.workloads.strategies.base.parameters import BalancedParameters, CompressibleParameters
from laggard.workloads.strategies.base.strategy import TrainingContext
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.transport.frames import Message


class ServerMessageKind(enum.IntEnum):
    """Messages between workers and the server."""

    HELLO = 1
    PUSH = 2
    """Version read; clock, samples, samples of the whole batch, and where batches are shared out
    by speed what a step costs (`CostReport`); gradients, then buffers, or a `GradientPacker` of
    them."""

    MODEL = 3
    """Version; the worker's next clock, whom it waited for, steps left out, version its push went
    into (-1: dropped), its staleness, and for how many nanoseconds the server held it; where
    batches are shared out by speed the worker's first place in the next batch, and how many."""

    STOP = 4
    """As MODEL, without a model."""

    JOIN = 5
    """As HELLO, of a worker that was not there when training began, or has been away; answered like
    PUSH."""


class PushPullWorker:
    """One worker; what the server does with its gradients is the subclass's rule.

    Args:
        parameters: of the strategy.
        context: what this rank trains with.

    Attributes:
        next_step: the step to take next; None once training is over.
        next_batch_range: places of its batch that the server has dealt this rank; None where shares
            are even.
    """

    def __init__(self, parameters: CompressibleParameters, context: TrainingContext) -> None:
        assert context.endpoint is not None
        self.model, self.optimizer = context.model, context.optimizer
        self.next_step: int | None = 0
        self.next_batch_range: range | None = None
        self._context, self._endpoint = context, context.endpoint
        self._gradient, self._state = LocalGradient(context), FlatState(context.model)
        codec = create_vector_codec(parameters.compress)
        self._packer = (
            None
            if codec is None
            else GradientPacker(
                ErrorFeedbackCodec(codec), self._state.parameters, self._state.read_gradients()
            )
        )
        # Who waits for all is at a barrier of all.
        self._group = 0 if parameters.sync_mode == "lockstep" else NO_GROUP
        self._version = self._skipped_steps = 0
        balanced = (
            parameters.balanced_batches if isinstance(parameters, BalancedParameters) else None
        )
        self._cost_monitor = (
            None if balanced is None else CostMonitor(balanced.window, context.recorder)
        )

    def join(self) -> None:
        """Ask the server for the model and for the step to begin with (see `AsyncStrategy`)."""
        self._endpoint.deliver(self._context.world_size, Message(ServerMessageKind.JOIN))
        reply = self._endpoint.receive()
        self._version = reply.version
        self._load_model(reply)
        self._update_next_step(reply)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Forward, backward, push, wait, pull (see `AsyncStrategy`)."""
        recorder, server = self._context.recorder, self._context.world_size
        loss = self._gradient.compute(batch, share)
        gradients = self._state.read_gradients()
        packed = gradients if self._packer is None else self._packer.pack(gradients)
        recorder.enter(Phase.COMM, peer=server, payload_bytes=packed.nbytes)
        values = (
            step,
            len(share.indices),
            share.batch_size,
            *self._measure_cost(step, len(batch.labels)),
        )
        self._endpoint.deliver(
            server, Message(ServerMessageKind.PUSH, self._version, values, packed)
        )
        reply = self._receive()
        read, self._version = self._version, reply.version
        recorder.enter(Phase.OPTIMIZER)
        self._load_model(reply)
        recorder.enter(Phase.OTHER)
        return self._build_result(loss, read, reply)

    def _measure_cost(self, step: int, computed: int) -> tuple[int, ...]:
        """What this rank's steps cost, with its own work of this one done; nothing where shares are
        even.
        """
        if self._cost_monitor is None:
            return ()
        self._cost_monitor.observe(step, computed)
        return self._cost_monitor.report.as_integers

    def _update_next_step(self, reply: Message) -> None:
        self.next_step = reply.values[0] if reply.kind == ServerMessageKind.MODEL else None
        batch_range = reply.values[6:]
        self.next_batch_range = (
            range(batch_range[0], batch_range[0] + batch_range[1]) if batch_range else None
        )

    def _load_model(self, reply: Message) -> None:
        if reply.tensor is not None:
            self._state.write(reply.tensor.to(self._context.device))
            self._gradient.synchronize()

    def _receive(self) -> Message:
        """The server's answer; at one's own pace, how long the server held it back is a span that
        carries nothing.
        """
        recorder, server = self._context.recorder, self._context.world_size
        since_ns = recorder.enter(Phase.COMM, group=self._group, peer=server)
        reply = self._endpoint.receive()
        if self._group != NO_GROUP:
            recorder.attribute(server, reply.payload_bytes)
            return reply
        waited_for, blocked_ns = reply.values[1], reply.values[5]
        recorder.attribute(waited_for if waited_for >= 0 else server, 0)
        resumed_ns = min(since_ns + blocked_ns, time.monotonic_ns())
        recorder.enter(Phase.COMM, peer=server, payload_bytes=reply.payload_bytes, at_ns=resumed_ns)
        return reply

    def _build_result(self, loss: float, read_version: int, reply: Message) -> StepResult:
        _, waited_for, skipped, applied_version, staleness, *_ = reply.values
        self._update_next_step(reply)
        skipped_before, self._skipped_steps = self._skipped_steps, skipped
        return StepResult(
            loss,
            applied=applied_version >= 0,
            read_version=read_version,
            applied_version=applied_version,
            staleness=staleness,
            skipped=skipped_before,
            waited_for=waited_for,
        )
