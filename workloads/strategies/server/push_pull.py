"""Workers' side of all strategies with a server: push a gradient, wait, pull the model.

Gradients may be compressed; the model is always sent whole.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

from laggard.core.span_schema import NO_GROUP, Phase
from laggard.workloads.balancing.cost_monitor import CostMonitor
from laggard.workloads.compress.codec import ErrorFeedbackCodec, create_vector_codec
from laggard.workloads.compress.gradient_packer import GradientPacker
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Indices, Share
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
    """Gradient of a worker. Version: the model version that it read. Values: its clock, its
    samples, samples of the whole batch, those of its samples that are old ones of a stream, and
    with balanced batches the cost of its steps (`CostReport`). Tensor: gradients, then buffers,
    possibly encoded by a `GradientPacker`.
    """

    MODEL = 3
    """Answer to a push or join. Version: that of the model. Values: the worker's next clock, the
    rank that it waited for, skipped steps, the version that its push became part of (-1: dropped),
    staleness of the push, and the nanoseconds that the server held the answer back. With balanced
    batches, two more: first position of the worker in the next batch, and its number of samples.
    """

    STOP = 4
    """End of training: as MODEL, without a model."""

    JOIN = 5
    """As HELLO, of a worker that was absent at the start or joins again; answered like PUSH."""


class PushPullWorker:
    """Worker of any strategy with a server.

    Only the server's rule differs between these strategies.

    Args:
        parameters: parameters of the strategy.
        context: training context of the rank.

    Attributes:
        next_step: step to take next; None after the end of training.
        next_batch_range: positions in the next batch that the server assigned to this rank; None
            if shares are equal.
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
        # In lockstep, waiting for the server means waiting for all ranks: it is a collective.
        self._group = 0 if parameters.sync_mode == "lockstep" else NO_GROUP
        self._version = self._skipped_steps = 0
        balanced = (
            parameters.balanced_batches if isinstance(parameters, BalancedParameters) else None
        )
        self._cost_monitor = (
            None if balanced is None else CostMonitor(balanced.window, context.recorder)
        )

    def warm_up(self, share: Share, fetch: Callable[[Indices], Batch]) -> None:
        """Do nothing: the measurement of the full speed has computed such a step already."""

    def join(self) -> None:
        """Request the model and the first step from the server (see `AsyncStrategy`)."""
        self._endpoint.deliver(self._context.world_size, Message(ServerMessageKind.JOIN))
        reply = self._endpoint.receive()
        self._version = reply.version
        self._load_model(reply)
        self._update_next_step(reply)

    def step(self, step: int, batch: Batch, share: Share) -> StepResult:
        """Run forward and backward pass, push, wait and pull (see `AsyncStrategy`)."""
        recorder, server = self._context.recorder, self._context.world_size
        loss = self._gradient.compute(batch, share)
        gradients = self._state.read_gradients()
        packed = gradients if self._packer is None else self._packer.pack(gradients)
        recorder.enter(Phase.COMM, peer=server, payload_bytes=packed.nbytes)
        values = (
            step,
            len(share.indices),
            share.batch_size,
            share.rehearsed,
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
        """Return the measured cost of this rank's steps; empty if shares are equal.

        Call it after the rank's own work of the step is done.
        """
        if self._cost_monitor is None:
            return ()
        self._cost_monitor.observe(step, computed)
        return self._cost_monitor.report.as_integers

    def _update_next_step(self, reply: Message) -> None:
        # A STOP message has no next step. Values from the seventh on are only there with balanced
        # batches.
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
        """Return the server's answer, and record the wait for it.

        Outside lockstep, the time that the server held the answer back becomes a span without
        payload. The rest of the wait is the transfer.
        """
        recorder, server = self._context.recorder, self._context.world_size
        since_ns = recorder.enter(Phase.COMM, group=self._group, peer=server)
        reply = self._endpoint.receive()
        if self._group != NO_GROUP:
            recorder.attribute(server, reply.payload_bytes)
            return reply
        waited_for, blocked_ns = reply.values[1], reply.values[5]
        recorder.attribute(waited_for if waited_for >= 0 else server, 0)
        # `blocked_ns` is a duration by the server's clock, so it needs no common time base.
        resumed_ns = min(since_ns + blocked_ns, time.monotonic_ns())
        recorder.enter(Phase.COMM, peer=server, payload_bytes=reply.payload_bytes, at_ns=resumed_ns)
        return reply

    def _build_result(self, loss: float, read_version: int, reply: Message) -> StepResult:
        _, waited_for, skipped, applied_version, staleness, *_ = reply.values
        self._update_next_step(reply)
        # The answer says how many steps are skipped now; they are recorded with the next step.
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
