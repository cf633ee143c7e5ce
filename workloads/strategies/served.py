"""The workers' side of all strategies with a server: push a gradient, compressed or not, wait for
the model, which is whole.
"""

from __future__ import annotations

import enum
import time

from laggard.span_schema import NO_GROUP, Phase
from laggard.workloads.balancing.own_cost import OwnCost
from laggard.workloads.compress.codec import Remembering, vector_codec
from laggard.workloads.compress.parcel import Parcel
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.flat_state import FlatState
from laggard.workloads.strategies.local_gradient import LocalGradient
from laggard.workloads.strategies.parameters import BalancedParameters, CompressibleParameters
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message


class Kind(enum.IntEnum):
    """Messages between workers and the server."""

    HELLO = 1
    PUSH = 2
    """Version read; clock, samples, samples of the whole batch, and where batches are shared out by
    speed what a step costs (`Found`); gradients, then buffers, or a `Parcel` of them."""

    MODEL = 3
    """Version; the worker's next clock, whom it waited for, steps left out, version its push went
    into (-1: dropped), its staleness, and for how many nanoseconds the server held it; where
    batches are shared out by speed the worker's first place in the next batch, and how many."""

    STOP = 4
    """As MODEL, without a model."""

    JOIN = 5
    """As HELLO, of a worker that was not there when training began, or has been away; answered like
    PUSH."""


class Served:
    """One worker; what the server does with its gradients is the subclass's rule.

    Args:
        parameters: of the strategy.
        seat: what this rank trains with.

    Attributes:
        next_step: the step to take next; None once training is over.
        next_part: places of its batch that the server has dealt this rank; None where shares are
            even.
    """

    def __init__(self, parameters: CompressibleParameters, seat: Seat) -> None:
        assert seat.endpoint is not None
        self.model, self.optimizer = seat.model, seat.optimizer
        self.next_step: int | None = 0
        self.next_part: range | None = None
        self._seat, self._endpoint = seat, seat.endpoint
        self._gradient, self._state = LocalGradient(seat), FlatState(seat.model)
        codec = vector_codec(parameters.compress)
        self._parcel = (
            None
            if codec is None
            else Parcel(Remembering(codec), self._state.parameters, self._state.read_gradients())
        )
        # Who waits for all is at a barrier of all.
        self._group = 0 if parameters.pace == "lockstep" else NO_GROUP
        self._version = self._left_out = 0
        balanced = (
            parameters.balanced_batches if isinstance(parameters, BalancedParameters) else None
        )
        self._own_cost = None if balanced is None else OwnCost(balanced.window, seat.recorder)

    def join(self) -> None:
        """Ask the server for the model and for the step to begin with (see `OwnPaceStrategy`)."""
        self._endpoint.deliver(self._seat.world_size, Message(Kind.JOIN))
        answer = self._endpoint.receive()
        self._version = answer.version
        self._take_up(answer)
        self._go_on(answer)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Forward, backward, push, wait, pull (see `OwnPaceStrategy`)."""
        recorder, server = self._seat.recorder, self._seat.world_size
        loss = self._gradient.compute(batch, share)
        gradients = self._state.read_gradients()
        packed = gradients if self._parcel is None else self._parcel.pack(gradients)
        recorder.enter(Phase.COMM, peer=server, payload_bytes=packed.nbytes)
        values = (
            step,
            len(share.indices),
            share.batch_size,
            *self._cost_of(step, len(batch.labels)),
        )
        self._endpoint.deliver(server, Message(Kind.PUSH, self._version, values, packed))
        answer = self._receive()
        read, self._version = self._version, answer.version
        recorder.enter(Phase.OPTIMIZER)
        self._take_up(answer)
        recorder.enter(Phase.OTHER)
        return self._told(loss, read, answer)

    def _cost_of(self, step: int, computed: int) -> tuple[int, ...]:
        """What this rank's steps cost, with its own work of this one done; nothing where shares are
        even.
        """
        if self._own_cost is None:
            return ()
        self._own_cost.observe(step, computed)
        return self._own_cost.found.whole_numbers

    def _go_on(self, answer: Message) -> None:
        self.next_step = answer.values[0] if answer.kind == Kind.MODEL else None
        part = answer.values[6:]
        self.next_part = range(part[0], part[0] + part[1]) if part else None

    def _take_up(self, answer: Message) -> None:
        if answer.tensor is not None:
            self._state.write(answer.tensor.to(self._seat.device))
            self._gradient.settle()

    def _receive(self) -> Message:
        """The server's answer; at one's own pace, how long the server held it back is a span that
        carries nothing.
        """
        recorder, server = self._seat.recorder, self._seat.world_size
        since_ns = recorder.enter(Phase.COMM, group=self._group, peer=server)
        answer = self._endpoint.receive()
        if self._group != NO_GROUP:
            recorder.attribute(server, answer.payload_bytes)
            return answer
        waited_for, held_ns = answer.values[1], answer.values[5]
        recorder.attribute(waited_for if waited_for >= 0 else server, 0)
        resumed_ns = min(since_ns + held_ns, time.monotonic_ns())
        recorder.enter(
            Phase.COMM, peer=server, payload_bytes=answer.payload_bytes, at_ns=resumed_ns
        )
        return answer

    def _told(self, loss: float, read_version: int, answer: Message) -> Learnt:
        _, waited_for, skipped, applied_version, staleness, *_ = answer.values
        self._go_on(answer)
        left_out, self._left_out = self._left_out, skipped
        return Learnt(
            loss,
            applied=applied_version >= 0,
            read_version=read_version,
            applied_version=applied_version,
            staleness=staleness,
            skipped=left_out,
            waited_for=waited_for,
        )
