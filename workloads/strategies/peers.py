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
from typing import Protocol

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

BESIDE_WAIT_S = 0.1
"""The same for a thread beside the training. Every message wakes it, and every step; to look more
often costs, at a few hundred microseconds a time, 12 % of a processor that is 3 % of a core."""

SWITCH_S = 1e-4
"""How long the thread that trains keeps the interpreter from one that exchanges models beside
it."""

Heard = Callable[[Message], None]
Standing = tuple[int, torch.Tensor]


class _Word(IntEnum):
    """What a HELLO says where it says anything: the first of its values."""

    ASKS = 1
    """For the model; answered with GIVES."""

    GIVES = 2
    """Version: the step that the model is of."""

    COMES = 3
    """The sender is there from now on, and wants to begin with the receiver's step, or if that is
    later, with the version; then the number of its session. Answered with WELCOMES."""

    JOINS = 4
    """The sender is there from now on, and begins with the step that is the version; then the
    number of its session. Answered with WELCOMES."""

    WELCOMES = 5
    """Version: the step to begin with. What had come from the sender before was for whoever had
    this rank before."""


class Resident(Protocol):
    """What a strategy does about ranks that join."""

    def standing(self) -> Standing:
        """The step that this rank is in, and a model to begin it with: parameters and buffers on
        the host, which stay as they are.
        """

    def admit(self, rank: int, step: int) -> None:
        """A rank is there, after all or again, and begins with a step: what it was told, and what
        was known of it, was in another life.
        """


class Peers:
    """One rank's connections to all others.

    Args:
        endpoint: which listens.
        world_size: number of ranks.
        recorder: told of waiting.
        tally: where it is said that training is over, and who is gone.
        bears_loss: whether training goes on without a rank that is gone; else that is an error.
        absent: ranks that are not there when training begins.
        session: of this rank (see `Tally.join`).
        first_step: before which this rank has nothing left to learn.

    Attributes:
        rank: this one.
        present: the others that are there.
        resident: what receives ranks that join; none can where there is none.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        world_size: int,
        recorder: Recorder,
        tally: Tally,
        *,
        bears_loss: bool = True,
        absent: Collection[int] = (),
        session: int = 0,
        first_step: int = 0,
    ) -> None:
        self.rank, self.world_size = endpoint.plan.node, world_size
        self.present = set(range(world_size)) - {self.rank} - set(absent)
        self.resident: Resident | None = None
        self._endpoint, self._recorder, self._tally = endpoint, recorder, tally
        self._thread: threading.Thread | None = None
        self._closing = self._tells_sends = False
        self._failure: BaseException | None = None
        self._underway: dict[tuple[int, int], tuple[int, int]] = {}
        self._bears_loss, self._first_step = bears_loss, first_step
        self._sessions = {**dict.fromkeys(range(world_size), 0), self.rank: session}
        self._deaf_to: set[int] = set()
        self._left_lying: deque[Message] = deque()
        for rank in absent:
            tally.leave(rank)

    def meet(self) -> None:
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

    def join(self) -> Standing | None:
        """Come into a training that is under way, as one of those who are there; the first of them
        is asked for the model.

        Who is there is read from the tally. This rank puts itself down before it looks for whom
        else to tell, so that of two who join at once one at least tells the other.

        Returns:
            The step to begin with, and the model; None where training is over.

        Raises:
            TransportError: nobody is there, or nobody answers in time.
        """
        self._tally.leave(self.rank, self._sessions[self.rank] - 1)
        self.present, self._deaf_to = set(), set(range(self.world_size)) - {self.rank}
        called: set[int] = set()
        found = self._find_host(called)
        if found is None:
            return None
        given, welcome = found
        self._tally.join(self.rank, self._sessions[self.rank])
        self.present = self._others()
        self._deaf_to.discard(welcome.sender)
        for rank in sorted(self.present):
            self._sessions[rank] = self._tally.session(rank)
            if rank not in called:
                self._endpoint.connect(rank)
            if rank != welcome.sender:
                self._say(rank, (_Word.JOINS, self._sessions[self.rank]), welcome.version)
        assert given.tensor is not None
        return welcome.version, given.tensor

    def _find_host(self, called: set[int]) -> tuple[Message, Message] | None:
        """A model and a welcome; of another one who is there, where the first is lost meanwhile."""
        deadline_s = time.monotonic() + self._endpoint.plan.timeout_s
        given = welcome = None
        while given is None or welcome is None:
            if self.over:
                return None
            host = min(self._others() - self._endpoint.departed, default=None)
            if host is None or time.monotonic() > deadline_s:
                why = "nobody is there" if host is None else f"rank {host} does not answer"
                raise TransportError(f"rank {self.rank} cannot join: {why}")
            if host not in called:
                self._endpoint.connect(host)
                called.add(host)
            if given is None:
                self._say(host, (_Word.ASKS,))
                given = self._hear(host, _Word.GIVES, deadline_s)
            if given is not None:
                self._say(host, (_Word.COMES, self._sessions[self.rank]), self._first_step)
                welcome = self._hear(host, _Word.WELCOMES, deadline_s)
        return given, welcome

    def _others(self) -> set[int]:
        return set(self._tally.present) - {self.rank}

    def _hear(self, host: int, answer: _Word, deadline_s: float) -> Message | None:
        """What it answers; None where it cannot any more, or training is over."""
        while (
            not self.over
            and host in self._others() - self._endpoint.departed
            and time.monotonic() < deadline_s
        ):
            message = self._endpoint.take(WAIT_S)
            if message is None or message.kind != HELLO or not message.values:
                continue
            if (message.sender, message.values[0]) == (host, answer):
                return message
            if message.values[0] in (_Word.ASKS, _Word.COMES, _Word.JOINS):
                self._left_lying.append(message)
        return None

    def _say(
        self,
        rank: int,
        values: tuple[int, ...],
        version: int = 0,
        tensor: torch.Tensor | None = None,
    ) -> None:
        with suppress(TransportError):  # who is gone by now is noted with all others that are
            self._endpoint.send(rank, Message(HELLO, version, values, tensor))

    def session_of(self, rank: int) -> int:
        """The session of a rank that is there, or of this one (see `Tally.join`)."""
        return self._sessions[rank]

    @property
    def is_known(self) -> bool:
        """Whether all who are there know that this rank is; one that joins has to be welcomed by
        each of them first.
        """
        return not self._deaf_to & self.present

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
        """Have a thread of its own do something again and again until training is over; the
        connections are that thread's from now on.

        With `tells_sends`, every tensor that it sends is recorded on `Lane.BESIDE`, from when it
        was sent until its receiver has said that it came.
        """
        # The interpreter gives way to a waiting thread after 5 ms: longer than many steps, and an
        # exchange needs it ten times.
        sys.setswitchinterval(SWITCH_S)
        self._tells_sends = tells_sends
        self._thread = threading.Thread(
            target=self._take_turns, args=(turn,), name="exchange", daemon=True
        )
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

    def send(self, rank: int, message: Message) -> int | None:
        """Begin to send; the tensor must stay as it is. Who is gone gets nothing.

        Returns:
            The number to ask by whether it `has_come`; None where nothing was sent.

        Raises:
            TransportError: it is gone, and cannot be done without.
        """
        if rank not in self.present:
            return None
        now_ns = time.monotonic_ns()
        try:
            number = self._endpoint.send(rank, message)
        except TransportError:
            self._note_departures()
            return None
        if self._tells_sends and message.tensor is not None:
            self._underway[rank, number] = now_ns, message.payload_bytes
        return number

    def has_come(self, rank: int, number: int) -> bool:
        """Whether a rank has said that it has what was sent under this number."""
        return self._endpoint.acknowledged(rank, number)

    def under_way_ns(self, rank: int) -> int:
        """How long what this rank sends to another has been on its way (see `Endpoint`)."""
        return self._endpoint.under_way_ns(rank)

    def listen(self, heard: Heard, timeout_s: float = 0.0) -> None:
        """Hand over every message that has come, waiting for one at most so long."""
        while self._left_lying:
            self._greet(self._left_lying.popleft())
        message = self._endpoint.take(timeout_s)
        while message is not None:
            if message.kind == HELLO:
                self._greet(message)
            elif message.sender not in self._deaf_to:
                heard(message)
            message = self._endpoint.take()
        self._tell_arrivals()
        self._note_departures()

    def _greet(self, message: Message) -> None:
        if not message.values or self.resident is None:
            return
        rank, word = message.sender, message.values[0]
        if word == _Word.WELCOMES:
            self._deaf_to.discard(rank)
            return
        step, model = self.resident.standing()
        if word == _Word.ASKS:
            self._say(rank, (_Word.GIVES,), step, model)
        elif word in (_Word.COMES, _Word.JOINS):
            begins = message.version if word == _Word.JOINS else max(message.version, step)
            self._say(rank, (_Word.WELCOMES,), begins)
            self._admit(rank, message.values[1], begins)

    def _admit(self, rank: int, session: int, step: int) -> None:
        assert self.resident is not None
        self._deaf_to.discard(rank)
        self._tally.leave(rank, session - 1)
        self._sessions[rank] = session
        self.present.add(rank)
        LOGGER.info("rank %d has joined in step %d", rank, step)
        self.resident.admit(rank, step)

    def wait(self, until: Callable[[], bool], heard: Heard) -> bool:
        """Listen until something is so; returns whether it is, or else training is over.

        Raises:
            TransportError: it is not so for longer than any step may take, or somebody is gone who
                cannot be done without.
        """
        deadline_s = time.monotonic() + self._endpoint.plan.timeout_s
        self.listen(heard)
        while not until():
            if self.over:
                return False
            if time.monotonic() > deadline_s:
                raise TransportError(
                    f"rank {self.rank} waited for its peers for {self._endpoint.plan.timeout_s:g} s"
                )
            self.listen(heard, WAIT_S)
        return True

    def tell_wait(self, since_ns: int, messages: Sequence[Message]) -> int:
        """Record what this rank did since `since_ns`, when it began to wait for these messages, the
        last of which came last.

        Until that one was sent it waited for its sender; what is left was the way. A message's
        first value is when it was sent (`stamped`).

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

    def _tell_arrivals(self) -> None:
        arrived = [sent for sent in self._underway if self._endpoint.acknowledged(*sent)]
        now_ns = time.monotonic_ns()
        for rank, number in arrived:
            since_ns, payload_bytes = self._underway.pop((rank, number))
            self._recorder.sent_beside(since_ns, now_ns, rank, payload_bytes)

    def part(self, tell_traffic: Callable[[], None]) -> None:
        """Training is over: stay until what everybody has sent has come, and has been counted,
        since a closed connection is forgotten.
        """
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
        unmet = (
            self._deaf_to - self._others() if self._deaf_to else set()
        )  # who dies before this rank has met it breaks no connection
        gone = (self._endpoint.departed | unmet) & self.present
        if not gone or self.over:  # who ends because training is over has not left it
            return
        if not self._bears_loss:
            raise TransportError(f"rank {min(gone)} is gone: connection reset by peer")
        for rank in gone:
            LOGGER.warning("rank %d is gone; the others go on without it", rank)
            self.present.discard(rank)
            self._tally.leave(rank, self._sessions[rank])


def stamped(
    kind: int, version: int, tensor: torch.Tensor | None = None, further: tuple[int, ...] = ()
) -> Message:
    """A message whose first value says when it is sent (see `Peers.tell_wait`)."""
    return Message(kind, version, (time.monotonic_ns(), *further), tensor)
