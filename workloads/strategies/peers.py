"""The other ranks, for strategies whose ranks send each other messages: who is there, and waiting that ends when training does."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence

import torch

from laggard.errors import TransportError
from laggard.span_schema import Phase
from laggard.workloads.learnt import NOBODY
from laggard.workloads.tally import Tally
from laggard.workloads.tracing.recorder import Recorder
from laggard.workloads.transport.endpoint import Endpoint
from laggard.workloads.transport.frames import Message

LOGGER = logging.getLogger(__name__)
HELLO = 1
"""The kind of the message with which a rank introduces itself; strategies number theirs from 2."""

PART_S = 5.0
"""Real seconds that a rank stays at the end for those who have still something to say."""

WAIT_S = 0.02
"""How long to listen before looking whether training is over."""

SWITCH_S = 1e-4
"""How long the thread that trains keeps the interpreter from one that exchanges models beside it."""

Heard = Callable[[Message], None]


class Peers:
    """One rank's connections to all others.

    Args:
        endpoint: which listens.
        world_size: number of ranks.
        recorder: told of waiting.
        tally: where it is said that training is over, and who is gone.
        bears_loss: whether training goes on without a rank that is gone; else that is an error.

    Attributes:
        rank: this one.
        present: the others that are there.
    """

    def __init__(
        self, endpoint: Endpoint, world_size: int, recorder: Recorder, tally: Tally, *, bears_loss: bool = True
    ) -> None:
        self.rank, self.world_size = endpoint.plan.node, world_size
        self.present = set(range(world_size)) - {self.rank}
        self._endpoint, self._recorder, self._tally = endpoint, recorder, tally
        self._thread: threading.Thread | None = None
        self._closing = self._tells_sends = False
        self._failure: BaseException | None = None
        self._underway: dict[tuple[int, int], tuple[int, int]] = {}
        self._bears_loss = bears_loss

    def meet(self) -> None:
        """Connect to all others: each rank calls those before it, and hears from those after it.

        Raises:
            TransportError: one did not come in time.
        """
        for rank in range(self.rank):
            self._endpoint.connect(rank)
        for rank in range(self.rank):
            self._endpoint.deliver(rank, Message(HELLO))
        missing = set(range(self.rank + 1, self.world_size))
        while missing:
            missing.discard(self._endpoint.receive().sender)

    @property
    def over(self) -> bool:
        """Whether the referee has ended the training.

        Raises:
            TransportError: the thread that exchanges models beside it has failed.
        """
        if self._failure is not None:
            raise TransportError(
                f"rank {self.rank} cannot exchange models any more: {self._failure}"
            ) from self._failure
        return bool(self._tally.ended)

    def beside(self, turn: Callable[[], None], *, tells_sends: bool = True) -> None:
        """Have a thread of its own do something again and again until training is over; the connections are that thread's from now on.

        With `tells_sends`, every tensor that it sends is recorded on `Lane.BESIDE`, from when it was sent until its receiver has said that it came.
        """
        # The interpreter gives way to a waiting thread after 5 ms: longer than many steps, and an exchange needs it ten times.
        sys.setswitchinterval(SWITCH_S)
        self._tells_sends = tells_sends
        self._thread = threading.Thread(target=self._take_turns, args=(turn,), name="exchange", daemon=True)
        self._thread.start()

    def _take_turns(self, turn: Callable[[], None]) -> None:
        try:
            while not self._closing and not self.over:
                turn()
        except Exception as error:  # noqa: BLE001 - whatever it was, the thread that trains has to hear of it
            self._failure = error

    def wake(self) -> None:
        """End the listening of the thread beside (any thread)."""
        self._endpoint.wake()

    def close(self) -> None:
        """End the thread beside, if there is one."""
        self._closing = True
        if self._thread is not None:
            self._endpoint.wake()
            self._thread.join()

    def send(self, rank: int, message: Message) -> None:
        """Begin to send; the tensor must stay as it is. Who is gone gets nothing.

        Raises:
            TransportError: it is gone, and cannot be done without.
        """
        now_ns = time.monotonic_ns()
        try:
            number = self._endpoint.send(rank, message)
        except TransportError:
            self._note_departures()
            return
        if self._tells_sends and message.tensor is not None:
            self._underway[rank, number] = now_ns, message.payload_bytes

    def listen(self, heard: Heard, timeout_s: float = 0.0) -> None:
        """Hand over every message that has come, waiting for one at most so long."""
        message = self._endpoint.take(timeout_s)
        while message is not None:
            if message.kind != HELLO:
                heard(message)
            message = self._endpoint.take()
        self._tell_arrivals()
        self._note_departures()

    def wait(self, until: Callable[[], bool], heard: Heard) -> bool:
        """Listen until something is so; returns whether it is, or else training is over.

        Raises:
            TransportError: it is not so for longer than any step may take, or somebody is gone who cannot be done without.
        """
        deadline_s = time.monotonic() + self._endpoint.plan.timeout_s
        self.listen(heard)
        while not until():
            if self.over:
                return False
            if time.monotonic() > deadline_s:
                raise TransportError(f"rank {self.rank} waited for its peers for {self._endpoint.plan.timeout_s:g} s")
            self.listen(heard, WAIT_S)
        return True

    def tell_wait(self, since_ns: int, messages: Sequence[Message]) -> int:
        """Record what this rank did since `since_ns`, when it began to wait for these messages, the last of which came last.

        Until that one was sent it waited for its sender; what is left was the way. A message's first value is when it was sent (`stamped`).

        Returns:
            The rank that was waited for; -1 for none.
        """
        if not messages:
            return NOBODY
        last, payload_bytes = messages[-1], sum(message.payload_bytes for message in messages)
        sent_ns = min(last.values[0], time.monotonic_ns())
        if sent_ns <= since_ns:
            self._recorder.enter(Phase.COMM, peer=last.sender, payload_bytes=payload_bytes, at_ns=since_ns)
            return NOBODY
        self._recorder.enter(Phase.COMM, peer=last.sender, at_ns=since_ns)
        self._recorder.enter(Phase.COMM, peer=last.sender, payload_bytes=payload_bytes, at_ns=sent_ns)
        return last.sender

    def _tell_arrivals(self) -> None:
        arrived = [sent for sent in self._underway if self._endpoint.acknowledged(*sent)]
        now_ns = time.monotonic_ns()
        for rank, number in arrived:
            since_ns, payload_bytes = self._underway.pop((rank, number))
            self._recorder.sent_beside(since_ns, now_ns, rank, payload_bytes)

    def part(self, tell_traffic: Callable[[], None]) -> None:
        """Training is over: stay until what everybody has sent has come, and has been counted, since a closed connection is forgotten."""
        self.close()
        self._endpoint.settle(PART_S)
        self._tell_arrivals()
        self._stay_for_all(1)
        tell_traffic()
        self._stay_for_all(2)

    def _stay_for_all(self, stage: int) -> None:
        self._tally.reach(self.rank, stage)
        deadline_s = time.monotonic() + PART_S
        while not self._tally.reached(stage) and time.monotonic() < deadline_s:
            self._endpoint.take(WAIT_S)

    def _note_departures(self) -> None:
        gone = self._endpoint.departed & self.present
        if not gone or self.over:  # who ends because training is over has not left it
            return
        if not self._bears_loss:
            raise TransportError(f"rank {min(gone)} is gone: connection reset by peer")
        for rank in gone:
            LOGGER.warning("rank %d is gone; the others go on without it", rank)
            self.present.discard(rank)
            self._tally.leave(rank)


def stamped(kind: int, version: int, tensor: torch.Tensor | None = None, further: tuple[int, ...] = ()) -> Message:
    """A message whose first value says when it is sent (see `Peers.tell_wait`)."""
    return Message(kind, version, (time.monotonic_ns(), *further), tensor)
