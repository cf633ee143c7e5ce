"""Connections between the ranks of strategies that send each other messages.

They track which ranks are present, let ranks join, and end every wait when training ends.
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
from laggard.core.span_schema import NOBODY, Phase
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    import torch

    from laggard.workloads.coordination.progress_board import ProgressBoard
    from laggard.workloads.tracing.recorder import Recorder
    from laggard.workloads.transport.endpoint import Endpoint


LOGGER = logging.getLogger(__name__)
HELLO = 1
"""Kind of the message with which a rank introduces itself; strategies number theirs from 2."""

EXIT_WAIT_S = 5.0
"""Real seconds that a rank waits at the end for the last messages of the others."""

POLL_S = 0.02
"""Seconds of listening between two checks for the end of training."""

BACKGROUND_POLL_S = 0.1
"""Same interval for a background thread. Every message and every step wakes it, so more frequent
checks gain nothing: at a few hundred microseconds each, they took 12 % of a host that has 3 % of a
core.
"""

THREAD_SWITCH_S = 1e-4
"""Longest time that the training thread keeps the interpreter while a background thread waits for
it, in seconds.
"""

MessageHandler = Callable[[Message], None]
JoinState: TypeAlias = "tuple[int, torch.Tensor]"


class _JoinMessage(IntEnum):
    """Kind of a HELLO message: the first of its values."""

    REQUEST_MODEL = 1
    """Request for the model; answered with SEND_MODEL."""

    SEND_MODEL = 2
    """Model of the sender. The version is the step that the model belongs to."""

    REQUEST_JOIN = 3
    """The sender is present from now on. It wants to begin with the receiver's step, or with the
    version if that is later. The second value is the sender's session. Answered with ACCEPT_JOIN.
    """

    ANNOUNCE_JOIN = 4
    """The sender is present from now on and begins with the step given as version. The second value
    is the sender's session. Answered with ACCEPT_JOIN.
    """

    ACCEPT_JOIN = 5
    """Answer to a join. The version is the step to begin with. Earlier messages of this sender were
    meant for the previous session of the joining rank.
    """


class JoinHandler(Protocol):
    """Part of a strategy that handles joining ranks."""

    def join_state(self) -> JoinState:
        """Return the step of this rank and a model to begin it with.

        The model is a vector of parameters and buffers in host memory, which must not change
        later.
        """

    def add_member(self, rank: int, step: int) -> None:
        """Add a rank that begins with this step, and discard the state of its previous session."""


class PeerConnections:
    """Connections of one rank to all others.

    Args:
        endpoint: message endpoint of this rank, already listening.
        world_size: number of ranks.
        recorder: recorder that receives the waits.
        progress_board: shared memory that tells the end of training and the ranks that are gone.
        supports_loss: whether training goes on after the loss of a rank; otherwise a loss is an
            error.
        absent: ranks that are not present when training begins.
        session: session number of this rank (see `ProgressBoard.join`).
        first_step: first step that this rank has not trained on in an earlier session.

    Attributes:
        rank: number of this rank.
        present: other ranks that are present.
        join_handler: handler of joining ranks; without one no rank can join.
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
        """Connect to all present ranks.

        Each rank connects to those with lower numbers and waits for those with higher numbers.

        Raises:
            TransportError: a rank did not connect in time.
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
        """Join a training that is in progress, with the model of the lowest present rank.

        The progress board names the present ranks. This rank enters itself there before it looks
        for the ranks to inform. So of two ranks that join at once, at least one informs the other.

        Returns:
            The step to begin with and the model; None if training is over.

        Raises:
            TransportError: no rank is present, or none answers in time.
        """
        # The board may not have recorded the end of the previous session yet.
        self._progress_board.leave(self.rank, self._sessions[self.rank] - 1)
        # A rank's messages count once it has accepted this session (see ACCEPT_JOIN).
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
        """Request the model and a place in the training from the lowest present rank.

        If that rank is lost meanwhile, the next one is asked.

        Returns:
            The message with the model and the message with the step to begin with; None if
            training is over.
        """
        deadline_s = time.monotonic() + self._endpoint.plan.timeout_s
        model_reply = join_reply = None
        while model_reply is None or join_reply is None:
            if self.has_ended:
                return None
            host = min(self._present_peers() - self._endpoint.departed, default=None)
            if host is None or time.monotonic() > deadline_s:
                why = "no other rank is present" if host is None else f"rank {host} does not answer"
                raise TransportError(f"rank {self.rank} cannot join the training: {why}")
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
        """Return a rank's answer; None if it is gone or silent, or if training is over."""
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
            # Other ranks that join at the same time are answered by `listen`, after this one has
            # joined.
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
        with suppress(TransportError):  # `_record_departures` handles a rank that is gone
            self._endpoint.send(rank, Message(HELLO, version, values, tensor))

    def session_of(self, rank: int) -> int:
        """Return the session of a present rank, or of this one (see `ProgressBoard.join`)."""
        return self._sessions[rank]

    @property
    def is_accepted_by_all(self) -> bool:
        """True if all present ranks know that this rank is present.

        A joining rank must receive ACCEPT_JOIN from each of them first.
        """
        return not self._ignored_senders & self.present

    @property
    def has_ended(self) -> bool:
        """True after the coordinator has ended the training.

        Raises:
            TransportError: the background thread that exchanges models has failed.
        """
        if self._failure is not None:
            raise TransportError(
                f"rank {self.rank}: the thread that exchanges models failed: {self._failure}"
            ) from self._failure
        return bool(self._progress_board.ended)

    def start_background_thread(
        self, turn: Callable[[], None], *, records_sends: bool = True
    ) -> None:
        """Start a thread that calls `turn` repeatedly until training is over.

        From then on only that thread may use the connections.

        Args:
            turn: function to call.
            records_sends: whether to record every sent tensor on `Lane.BACKGROUND`, from its
                sending to the receiver's acknowledgement.
        """
        # By default the interpreter switches to a waiting thread after 5 ms. That is longer than
        # many steps, and one exchange needs about ten switches.
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
        # Any failure must reach the training thread, which raises it from `has_ended`.
        except Exception as error:  # noqa: BLE001
            self._failure = error

    def wake(self) -> None:
        """Interrupt the listening of the background thread; any thread may call this."""
        self._endpoint.wake()

    def close(self) -> None:
        """End the background thread, if there is one."""
        self._closing = True
        if self._thread is not None:
            self._endpoint.wake()  # it may be waiting for messages
            self._thread.join()

    def send(self, rank: int, message: Message) -> int | None:
        """Begin to send a message; its tensor must not change until it is acknowledged.

        A message to a rank that is gone is dropped.

        Returns:
            The message number, for `is_acknowledged`; None if nothing was sent.

        Raises:
            TransportError: the rank is gone, and training cannot continue without it.
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
        """Return whether a rank has acknowledged the message with this number."""
        return self._endpoint.acknowledged(rank, number)

    def under_way_ns(self, rank: int) -> int:
        """Return the time that bytes to a rank were unacknowledged (see `Endpoint`), in ns."""
        return self._endpoint.under_way_ns(rank)

    def listen(self, on_message: MessageHandler, timeout_s: float = 0.0) -> None:
        """Hand over every message that arrives, waiting up to `timeout_s` for the first one."""
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
        """Listen until the condition `until` is met or training is over.

        Returns:
            Whether the condition is met; False means that training is over.

        Raises:
            TransportError: the condition is not met within the transport's time-out, or a rank is
                gone that training cannot continue without.
        """
        deadline_s = time.monotonic() + self._endpoint.plan.timeout_s
        self.listen(on_message)
        while not until():
            if self.has_ended:
                return False
            if time.monotonic() > deadline_s:
                raise TransportError(
                    f"rank {self.rank} waited for messages of its peers longer than the limit of"
                    f" {self._endpoint.plan.timeout_s:g} s"
                )
            self.listen(on_message, POLL_S)
        return True

    def record_wait(self, since_ns: int, messages: Sequence[Message]) -> int:
        """Record the wait since `since_ns` for these messages.

        The last message of the sequence must be the one that arrived last. Until its sender sent
        it, this rank waited for the sender; the rest was its time on the link. The first value of
        a message is its sending time (see `build_stamped_message`).

        Returns:
            The rank that was waited for; -1 for none.
        """
        if not messages:
            return NOBODY
        last, payload_bytes = messages[-1], sum(message.payload_bytes for message in messages)
        sent_ns = min(last.values[0], time.monotonic_ns())
        # Sent before the wait began: the whole wait is time on the link.
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
        """Stay after training until all messages have arrived; then call `write_traffic`.

        The kernel forgets the byte counters of a closed connection. So no rank closes before all
        ranks have written theirs.
        """
        self.close()
        self._endpoint.drain(EXIT_WAIT_S)
        self._record_acknowledged_sends()
        # Stage 1: this rank's messages are acknowledged. Stage 2: its counters are written.
        self._wait_for_stage(1)
        write_traffic()
        self._wait_for_stage(2)

    def _wait_for_stage(self, stage: int) -> None:
        self._progress_board.reach(self.rank, stage)
        deadline_s = time.monotonic() + EXIT_WAIT_S
        while not self._progress_board.reached(stage) and time.monotonic() < deadline_s:
            self._endpoint.take(POLL_S)  # acknowledges what other ranks still send

    def _record_departures(self) -> None:
        unmet = (
            self._ignored_senders - self._present_peers() if self._ignored_senders else set()
        )  # a rank that dies before it has met this one breaks no connection
        departed = (self._endpoint.departed | unmet) & self.present
        if not departed or self.has_ended:  # a rank that exits after training has not left it
            return
        if not self._supports_loss:
            raise TransportError(f"rank {min(departed)} is gone: connection reset by peer")
        for rank in departed:
            LOGGER.warning("rank %d is gone; training continues without it", rank)
            self.present.discard(rank)
            self._progress_board.leave(rank, self._sessions[rank])


def build_stamped_message(
    kind: int, version: int, tensor: torch.Tensor | None = None, further: tuple[int, ...] = ()
) -> Message:
    """Build a message whose first value is its sending time (see `record_wait`)."""
    return Message(kind, version, (time.monotonic_ns(), *further), tensor)
