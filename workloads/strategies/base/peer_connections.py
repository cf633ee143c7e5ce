"""The other ranks, for strategies whose ranks send each other messages: who is there, and waiting
that ends when training does.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from laggard.core.errors import TransportError
from laggard.core.span_schema import Phase
from laggard.workloads.tracing.step_result import NOBODY
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch

    from laggard.workloads.coordination.progress_board import ProgressBoard
    from laggard.workloads.tracing.recorder import Recorder
    from laggard.workloads.transport.endpoint import Endpoint


LOGGER = logging.getLogger(__name__)
HELLO = 1
"""The kind of the message with which a rank introduces itself; strategies number theirs from 2."""

EXIT_WAIT_S = 5.0
"""Real seconds that a rank stays at the end for those who have still something to say."""

POLL_S = 0.02
"""How long to listen before looking whether training is over."""

BACKGROUND_POLL_S = 0.1
"""The same for a thread beside the training. Every message wakes it, and every step; to look more
often costs, at a few hundred microseconds a time, 12 % of a processor that is 3 % of a core."""

THREAD_SWITCH_S = 1e-4
"""How long the thread that trains keeps the interpreter from one that exchanges models beside
it."""

MessageHandler = Callable[[Message], None]
JoinState: TypeAlias = "tuple[int, torch.Tensor]"


class _JoinMessage(IntEnum):
    """Kinds of HELLO messages: the first of their values."""

    REQUEST_MODEL = 1
    """For the model; answered with GIVES."""

    SEND_MODEL = 2
    """Version: the step that the model is of."""

    REQUEST_JOIN = 3
    """The sender is there from now on, and wants to begin with the receiver's step, or if that is
    later, with the version; then the number of its session. Answered with WELCOMES."""

    ANNOUNCE_JOIN = 4
    """The sender is there from now on, and begins with the step that is the version; then the
    number of its session. Answered with WELCOMES."""

    ACCEPT_JOIN = 5
    """Version: the step to begin with. What had come from the sender before was for whoever had
    this rank before."""


class JoinHandler(Protocol):
    """Part of a strategy that handles joining ranks."""

    def join_state(self) -> JoinState:
        """The step that this rank is in, and a model to begin it with: parameters and buffers on
        the host, which stay as they are.
        """

    def add_member(self, rank: int, step: int) -> None:
        """A rank is there, after all or again, and begins with a step: what it was told, and what
        was known of it, was in another life.
        """


class PeerConnections:
    """One rank's connections to all others.

    Args:
        endpoint: which listens.
        world_size: number of ranks.
        recorder: told of waiting.
        progress_board: where it is said that training is over, and who is gone.
        supports_loss: whether training goes on without a rank that is gone; else that is an error.
        absent: ranks that are not there when training begins.
        session: of this rank (see `ProgressBoard.join`).
        first_step: before which this rank has nothing left to learn.

    Attributes:
        rank: this one.
        present: the others that are there.
        join_handler: what receives ranks that join; none can where there is none.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        world_size: int,
        recorder: Recorder,
        progress_board: ProgressBoard,
        *,
        supports_loss: bool = True,
        absent: Collection[int] = (),
        session: int = 0,
        first_step: int = 0,
    ) -> None:
        self.rank, self.world_size = endpoint.plan.node, world_size
        self.present = set(range(world_size)) - {self.rank} - set(absent)
        self.join_handler: JoinHandler | None = None
        self._endpoint, self._recorder, self._progress_board = endpoint, recorder, progress_board
        self._thread: threading.Thread | None = None
        self._closing = self._records_sends = False
        self._failure: BaseException | None = None
        self._unacknowledged: dict[tuple[int, int], tuple[int, int]] = {}
        self._supports_loss, self._first_step = supports_loss, first_step
        self._sessions = {**dict.fromkeys(range(world_size), 0), self.rank: session}
        self._ignored_senders: set[int] = set()
        self._deferred_hellos: deque[Message] = deque()
        for rank in absent:
            progress_board.leave(rank)

    def connect_all(self) -> None:
        """Connect to all others: each rank calls those before it, and hears from those after it.

        Raises:
            TransportError: one did not come in time.
        """
        before = sorted(rank for rank in self.present if rank < self.rank)
        for rank in before:
            self._endpoint.connect(rank)
        for rank in before:
            self._endpoint.deliver(rank, Message(HELLO))
        missing = self.present - set(before)
        while missing:
            missing.discard(self._endpoint.receive().sender)

    def join(self) -> JoinState | None:
        """Come into a training that is under way, as one of those who are there; the first of them
        is asked for the model.

        Who is there is read from the progress board. This rank puts itself down before it looks for
        whom else to tell, so that of two who join at once one at least tells the other.

        Returns:
            The step to begin with, and the model; None where training is over.

        Raises:
            TransportError: nobody is there, or nobody answers in time.
        """
        self._progress_board.leave(self.rank, self._sessions[self.rank] - 1)
        self.present, self._ignored_senders = set(), set(range(self.world_size)) - {self.rank}
        contacted: set[int] = set()
        found = self._request_join(contacted)
        if found is None:
            return None
        model_reply, join_reply = found
        self._progress_board.join(self.rank, self._sessions[self.rank])
        self.present = self._present_peers()
        self._ignored_senders.discard(join_reply.sender)
        for rank in sorted(self.present):
            self._sessions[rank] = self._progress_board.session(rank)
            if rank not in contacted:
                self._endpoint.connect(rank)
            if rank != join_reply.sender:
                self._send_hello(
                    rank,
                    (_JoinMessage.ANNOUNCE_JOIN, self._sessions[self.rank]),
                    join_reply.version,
                )
        assert model_reply.tensor is not None
        return join_reply.version, model_reply.tensor

    def _request_join(self, contacted: set[int]) -> tuple[Message, Message] | None:
        """A model and a welcome; of another one who is there, where the first is lost meanwhile."""
        deadline_s = time.monotonic() + self._endpoint.plan.timeout_s
        model_reply = join_reply = None
        while model_reply is None or join_reply is None:
            if self.has_ended:
                return None
            host = min(self._present_peers() - self._endpoint.departed, default=None)
            if host is None or time.monotonic() > deadline_s:
                why = "nobody is there" if host is None else f"rank {host} does not answer"
                raise TransportError(f"rank {self.rank} cannot join: {why}")
            if host not in contacted:
                self._endpoint.connect(host)
                contacted.add(host)
            if model_reply is None:
                self._send_hello(host, (_JoinMessage.REQUEST_MODEL,))
                model_reply = self._receive_reply(host, _JoinMessage.SEND_MODEL, deadline_s)
            if model_reply is not None:
                self._send_hello(
                    host, (_JoinMessage.REQUEST_JOIN, self._sessions[self.rank]), self._first_step
                )
                join_reply = self._receive_reply(host, _JoinMessage.ACCEPT_JOIN, deadline_s)
        return model_reply, join_reply

    def _present_peers(self) -> set[int]:
        return set(self._progress_board.present) - {self.rank}

    def _receive_reply(self, host: int, answer: _JoinMessage, deadline_s: float) -> Message | None:
        """What it answers; None where it cannot any more, or training is over."""
        while (
            not self.has_ended
            and host in self._present_peers() - self._endpoint.departed
            and time.monotonic() < deadline_s
        ):
            message = self._endpoint.take(POLL_S)
            if message is None or message.kind != HELLO or not message.values:
                continue
            if (message.sender, message.values[0]) == (host, answer):
                return message
            if message.values[0] in (
                _JoinMessage.REQUEST_MODEL,
                _JoinMessage.REQUEST_JOIN,
                _JoinMessage.ANNOUNCE_JOIN,
            ):
                self._deferred_hellos.append(message)
        return None

    def _send_hello(
        self,
        rank: int,
        values: tuple[int, ...],
        version: int = 0,
        tensor: torch.Tensor | None = None,
    ) -> None:
        with suppress(TransportError):  # who is gone by now is noted with all others that are
            self._endpoint.send(rank, Message(HELLO, version, values, tensor))

    def session_of(self, rank: int) -> int:
        """The session of a rank that is there, or of this one (see `ProgressBoard.join`)."""
        return self._sessions[rank]

    @property
    def is_accepted_by_all(self) -> bool:
        """Whether all who are there know that this rank is; one that joins has to be welcomed by
        each of them first.
        """
        return not self._ignored_senders & self.present

    @property
    def has_ended(self) -> bool:
        """Whether the coordinator has ended the training.

        Raises:
            TransportError: the thread that exchanges models beside it has failed.
        """
        if self._failure is not None:
            raise TransportError(
                f"rank {self.rank} cannot exchange models any more: {self._failure}"
            ) from self._failure
        return bool(self._progress_board.ended)

    def start_background_thread(
        self, turn: Callable[[], None], *, records_sends: bool = True
    ) -> None:
        """Have a thread of its own do something again and again until training is over; the
        connections are that thread's from now on.

        With `records_sends`, every tensor that it sends is recorded on `Lane.BESIDE`, from when it
        was sent until its receiver has said that it came.
        """
        # The interpreter gives way to a waiting thread after 5 ms: longer than many steps, and an
        # exchange needs it ten times.
        sys.setswitchinterval(THREAD_SWITCH_S)
        self._records_sends = records_sends
        self._thread = threading.Thread(
            target=self._run_turns, args=(turn,), name="exchange", daemon=True
        )
        self._thread.start()

    def _run_turns(self, turn: Callable[[], None]) -> None:
        try:
            while not self._closing and not self.has_ended:
                turn()
        # Whatever it was, the thread that trains has to hear of it.
        except Exception as error:  # noqa: BLE001
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

    def send(self, rank: int, message: Message) -> int | None:
        """Begin to send; the tensor must stay as it is. Who is gone gets nothing.

        Returns:
            The number to ask by whether it `is_acknowledged`; None where nothing was sent.

        Raises:
            TransportError: it is gone, and cannot be done without.
        """
        if rank not in self.present:
            return None
        now_ns = time.monotonic_ns()
        try:
            number = self._endpoint.send(rank, message)
        except TransportError:
            self._record_departures()
            return None
        if self._records_sends and message.tensor is not None:
            self._unacknowledged[rank, number] = now_ns, message.payload_bytes
        return number

    def is_acknowledged(self, rank: int, number: int) -> bool:
        """Whether a rank has said that it has what was sent under this number."""
        return self._endpoint.acknowledged(rank, number)

    def under_way_ns(self, rank: int) -> int:
        """How long what this rank sends to another has been on its way (see `Endpoint`)."""
        return self._endpoint.under_way_ns(rank)

    def listen(self, on_message: MessageHandler, timeout_s: float = 0.0) -> None:
        """Hand over every message that has come, waiting for one at most so long."""
        while self._deferred_hellos:
            self._on_hello(self._deferred_hellos.popleft())
        message = self._endpoint.take(timeout_s)
        while message is not None:
            if message.kind == HELLO:
                self._on_hello(message)
            elif message.sender not in self._ignored_senders:
                on_message(message)
            message = self._endpoint.take()
        self._record_acknowledged_sends()
        self._record_departures()

    def _on_hello(self, message: Message) -> None:
        if not message.values or self.join_handler is None:
            return
        rank, hello_kind = message.sender, message.values[0]
        if hello_kind == _JoinMessage.ACCEPT_JOIN:
            self._ignored_senders.discard(rank)
            return
        step, model = self.join_handler.join_state()
        if hello_kind == _JoinMessage.REQUEST_MODEL:
            self._send_hello(rank, (_JoinMessage.SEND_MODEL,), step, model)
        elif hello_kind in (_JoinMessage.REQUEST_JOIN, _JoinMessage.ANNOUNCE_JOIN):
            begins = (
                message.version
                if hello_kind == _JoinMessage.ANNOUNCE_JOIN
                else max(message.version, step)
            )
            self._send_hello(rank, (_JoinMessage.ACCEPT_JOIN,), begins)
            self._add_peer(rank, message.values[1], begins)

    def _add_peer(self, rank: int, session: int, step: int) -> None:
        assert self.join_handler is not None
        self._ignored_senders.discard(rank)
        self._progress_board.leave(rank, session - 1)
        self._sessions[rank] = session
        self.present.add(rank)
        LOGGER.info("rank %d has joined in step %d", rank, step)
        self.join_handler.add_member(rank, step)

    def wait(self, until: Callable[[], bool], on_message: MessageHandler) -> bool:
        """Listen until something is so; returns whether it is, or else training is over.

        Raises:
            TransportError: it is not so for longer than any step may take, or somebody is gone who
                cannot be done without.
        """
        deadline_s = time.monotonic() + self._endpoint.plan.timeout_s
        self.listen(on_message)
        while not until():
            if self.has_ended:
                return False
            if time.monotonic() > deadline_s:
                raise TransportError(
                    f"rank {self.rank} waited for its peers for {self._endpoint.plan.timeout_s:g} s"
                )
            self.listen(on_message, POLL_S)
        return True

    def record_wait(self, since_ns: int, messages: Sequence[Message]) -> int:
        """Record what this rank did since `since_ns`, when it began to wait for these messages, the
        last of which came last.

        Until that one was sent it waited for its sender; what is left was the way. A message's
        first value is when it was sent (`build_stamped_message`).

        Returns:
            The rank that was waited for; -1 for none.
        """
        if not messages:
            return NOBODY
        last, payload_bytes = messages[-1], sum(message.payload_bytes for message in messages)
        sent_ns = min(last.values[0], time.monotonic_ns())
        if sent_ns <= since_ns:
            self._recorder.enter(
                Phase.COMM, peer=last.sender, payload_bytes=payload_bytes, at_ns=since_ns
            )
            return NOBODY
        self._recorder.enter(Phase.COMM, peer=last.sender, at_ns=since_ns)
        self._recorder.enter(
            Phase.COMM, peer=last.sender, payload_bytes=payload_bytes, at_ns=sent_ns
        )
        return last.sender

    def _record_acknowledged_sends(self) -> None:
        arrived = [sent for sent in self._unacknowledged if self._endpoint.acknowledged(*sent)]
        now_ns = time.monotonic_ns()
        for rank, number in arrived:
            since_ns, payload_bytes = self._unacknowledged.pop((rank, number))
            self._recorder.record_background_send(since_ns, now_ns, rank, payload_bytes)

    def wait_before_exit(self, write_traffic: Callable[[], None]) -> None:
        """Training is over: stay until what everybody has sent has come, and has been counted,
        since a closed connection is forgotten.
        """
        self.close()
        self._endpoint.drain(EXIT_WAIT_S)
        self._record_acknowledged_sends()
        self._wait_for_stage(1)
        write_traffic()
        self._wait_for_stage(2)

    def _wait_for_stage(self, stage: int) -> None:
        self._progress_board.reach(self.rank, stage)
        deadline_s = time.monotonic() + EXIT_WAIT_S
        while not self._progress_board.reached(stage) and time.monotonic() < deadline_s:
            self._endpoint.take(POLL_S)

    def _record_departures(self) -> None:
        unmet = (
            self._ignored_senders - self._present_peers() if self._ignored_senders else set()
        )  # who dies before this rank has met it breaks no connection
        departed = (self._endpoint.departed | unmet) & self.present
        if not departed or self.has_ended:  # who ends because training is over has not left it
            return
        if not self._supports_loss:
            raise TransportError(f"rank {min(departed)} is gone: connection reset by peer")
        for rank in departed:
            LOGGER.warning("rank %d is gone; the others go on without it", rank)
            self.present.discard(rank)
            self._progress_board.leave(rank, self._sessions[rank])


def build_stamped_message(
    kind: int, version: int, tensor: torch.Tensor | None = None, further: tuple[int, ...] = ()
) -> Message:
    """A message whose first value says when it is sent (see `PeerConnections.record_wait`)."""
    return Message(kind, version, (time.monotonic_ns(), *further), tensor)
