"""Queries of a reference node's clock over UDP, and the responder that answers them.

`laggard.core.clocks.clock_fit` uses these exchanges to fit clocks. A burst is a few datagrams.
Each is sent when the previous one was answered, or should have been. The first datagram wakes the
machines up for the others. Only the fastest exchange in either direction matters, so lost, late or
reordered datagrams do no harm. Times are taken in user space next to the system calls, because the
kernel's own timestamps belong to another clock. The time in between counts as delay, which widens
the bound and never makes it wrong. Question and answer have the same size. Therefore both take
equally long on a slow link, and the responder cannot be used to amplify traffic.
"""

from __future__ import annotations

import logging
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Self

from laggard.core.clocks.timestamps import ClockExchange
from laggard.core.errors import DeploymentError

CLOCK_PORT = 28319
"""UDP port of the responder; below the ports that Linux assigns to clients."""

BURST = 8
"""Number of datagrams in a burst."""

PATIENCE_S = 10.0
"""Seconds after which an unanswered question is forgotten. The full queue of a slow link can delay
an answer by seconds."""

_DATAGRAM = struct.Struct("!4sQIqq")  # kind, nonce, number, received_ns, answered_ns
_QUESTION, _ANSWER = b"LgQ1", b"LgA1"
# Limit per call, so that a flood of datagrams cannot block the caller's event loop.
_AT_ONCE = 64

Clock = Callable[[], int]
_log = logging.getLogger(__name__)


class Responder:
    """Responder that answers each question with its clock's time; use it as a context manager.

    It runs in an event loop of the caller or in `serve_clock`.

    Attributes:
        answered: number of answered questions
        foreign: number of other datagrams, which were ignored
        unsent: number of answers that the kernel did not send
    """

    def __init__(
        self, address: str, port: int = CLOCK_PORT, *, clock: Clock = time.monotonic_ns
    ) -> None:
        """Bind to an IPv4 address of this machine; port 0 selects a free port.

        Raises:
            DeploymentError: the address does not belong to this machine, or the port is in use
        """
        self.answered = self.foreign = self.unsent = 0
        self._clock = clock
        self._socket = _bind_socket(address, port)
        self._buffer = bytearray(_DATAGRAM.size + 1)

    @property
    def port(self) -> int:
        """Return the UDP port of the responder."""
        return int(self._socket.getsockname()[1])

    def fileno(self) -> int:
        """Return the descriptor that is readable when `answer` has something to do."""
        return self._socket.fileno()

    def answer(self) -> None:
        """Answer pending questions without blocking."""
        for _ in range(_AT_ONCE):
            try:
                size, asker = self._socket.recvfrom_into(self._buffer)
            except BlockingIOError:
                return
            received_ns = self._clock()
            kind, nonce, number, _, _ = _DATAGRAM.unpack_from(self._buffer)
            if size != _DATAGRAM.size or kind != _QUESTION:
                self.foreign += 1
                continue
            try:
                self._socket.sendto(
                    _DATAGRAM.pack(_ANSWER, nonce, number, received_ns, self._clock()), asker
                )
                self.answered += 1
            except OSError as error:
                # Equivalent to a lost datagram, which the other side must tolerate anyway.
                self.unsent += 1
                _log.debug("clock answer to %s was not sent: %s", asker, error)

    def serve(self, stop: int) -> None:
        """Answer until the descriptor `stop` becomes readable or its other end is closed."""
        with select.epoll() as poll:
            poll.register(self.fileno(), select.EPOLLIN)
            poll.register(stop, select.EPOLLIN)
            while True:
                ready = {descriptor for descriptor, _ in poll.poll()}
                if self.fileno() in ready:
                    self.answer()
                if stop in ready:
                    return

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_clock(
    address: str, port: int = CLOCK_PORT, *, stop: int, clock: Clock = time.monotonic_ns
) -> None:
    """Answer questions until the descriptor `stop` becomes readable or its other end is closed.

    Raises:
        DeploymentError: the address does not belong to this machine, or the port is in use
    """
    with Responder(address, port, clock=clock) as responder:
        responder.serve(stop)


class Exchanger:
    """Sender of clock questions in bursts, driven by an event loop.

    The loop waits for `fileno` for at most `due_s` seconds and then calls `step`. A late call
    loses no exchange, and each call sends at most one datagram; the bound gets wider, not wrong.
    An endless exchanger ends a burst as soon as one answer was about as fast as the fastest so
    far, because both of its directions were then fast. On idle networks two or three datagrams
    suffice.

    Attributes:
        probes_sent: number of questions sent
        answered: number of completed exchanges
        foreign: number of datagrams that did not answer a question of this exchanger and were
            ignored
        failure: last error of the kernel while sending or receiving, such as a closed port; None
            if there was none
    """

    def __init__(
        self,
        reference: str,
        port: int = CLOCK_PORT,
        *,
        # The socket is connected at once, so it receives from the reference only.
        address: str = "0.0.0.0",  # noqa: S104
        bursts: int | None = None,
        spacing_s: float = 1.0,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        """Prepare to query; the first `step` sends the first datagram.

        Args:
            reference: IPv4 address of the responder
            port: UDP port of the responder
            address: address of this machine to send from
            bursts: number of bursts; None continues without end
            spacing_s: seconds from the start of a burst to the start of the next
            clock: function that reads this machine's clock, in ns

        Raises:
            DeploymentError: the address does not belong to this machine, or there is no route
        """
        self.probes_sent = self.answered = self.foreign = 0
        self.failure: OSError | None = None
        self._clock = clock
        self._bursts_left = bursts
        self._spacing_s = spacing_s
        self._gap_s = spacing_s / BURST
        # The nonce distinguishes answers to this exchanger from those to an earlier one.
        self._nonce = secrets.randbits(64)
        self._fastest_ns: int | None = None
        self._waiting: dict[int, tuple[int, float]] = {}
        self._burst_left = 0
        self._next_s = self._burst_s = time.monotonic()
        self._buffer = bytearray(_DATAGRAM.size + 1)
        self._socket = _bind_socket(address, 0)
        try:
            self._socket.connect((reference, port))
        except OSError as error:
            self._socket.close()
            raise DeploymentError(
                f"the clock of {reference} cannot be reached from {address}: {error}; check the"
                " routes"
            ) from error

    def fileno(self) -> int:
        """Return the descriptor that is readable when an answer has arrived."""
        return self._socket.fileno()

    @property
    def due_s(self) -> float | None:
        """Return the seconds after which `step` must be called without an answer.

        None means that all questions have been sent.
        """
        return None if self._is_through() else max(0.0, self._next_s - time.monotonic())

    @property
    def waiting(self) -> int:
        """Return the number of questions that may still be answered."""
        return len(self._waiting)

    def step(self) -> tuple[ClockExchange, ...]:
        """Receive pending answers and send a due question, without blocking."""
        exchanges = self._receive()
        now_s = time.monotonic()
        if exchanges and self._burst_left:
            self._next_s = now_s
            self._spare(exchanges)
        if not self._is_through() and now_s >= self._next_s:
            self._send_probe(now_s)
        return exchanges

    def close(self) -> None:
        """Stop querying."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_through(self) -> bool:
        return not self._burst_left and self._bursts_left == 0

    def _spare(self, exchanges: Sequence[ClockExchange]) -> None:
        """End a burst of an endless exchanger if further answers could hardly be faster."""
        fastest_ns = min(_net_ns(each) for each in exchanges)
        if (
            self._fastest_ns is not None
            and self._bursts_left is None
            # Within an eighth of the fastest exchange so far.
            and fastest_ns * 8 <= self._fastest_ns * 9
        ):
            self._burst_left, self._next_s = 0, self._burst_s + self._spacing_s
        self._fastest_ns = (
            fastest_ns if self._fastest_ns is None else min(fastest_ns, self._fastest_ns)
        )

    def _send_probe(self, now_s: float) -> None:
        if not self._burst_left:
            self._burst_left, self._burst_s = BURST, now_s
            self._bursts_left = None if self._bursts_left is None else self._bursts_left - 1
            self._forget(now_s - PATIENCE_S)
        number = self.probes_sent & 0xFFFFFFFF
        self.probes_sent += 1
        self._burst_left -= 1
        self._next_s = (
            now_s + self._gap_s if self._burst_left else max(now_s, self._burst_s + self._spacing_s)
        )
        sent_ns = self._clock()
        try:
            self._socket.send(_DATAGRAM.pack(_QUESTION, self._nonce, number, 0, 0))
        except OSError as error:
            self._note(error)
        else:
            self._waiting[number] = (sent_ns, now_s)

    def _forget(self, before_s: float) -> None:
        while self._waiting and (oldest := next(iter(self._waiting.items())))[1][1] < before_s:
            del self._waiting[oldest[0]]

    def _receive(self) -> tuple[ClockExchange, ...]:
        found = []
        for _ in range(_AT_ONCE):
            try:
                size = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                break
            except OSError as error:
                self._note(error)
                continue
            returned_ns = self._clock()
            exchange = self._understand(size, returned_ns)
            if exchange is None:
                self.foreign += 1
            else:
                found.append(exchange)
        self.answered += len(found)
        return tuple(found)

    def _understand(self, size: int, returned_ns: int) -> ClockExchange | None:
        kind, nonce, number, received_ns, answered_ns = _DATAGRAM.unpack_from(self._buffer)
        if (
            size != _DATAGRAM.size
            or kind != _ANSWER
            or nonce != self._nonce
            or number not in self._waiting
        ):
            return None
        sent_ns, _ = self._waiting.pop(number)
        try:
            return ClockExchange(sent_ns, received_ns, answered_ns, returned_ns)
        except ValueError:
            # The reference claims impossible times.
            return None

    def _note(self, error: OSError) -> None:
        """Record an error that is equivalent to a lost datagram.

        Examples are a port without listener, a full buffer and a missing route.
        """
        self.failure = error
        _log.debug("clock exchange %d: %s", self.probes_sent, error)


def exchange_clocks(
    reference: str,
    port: int = CLOCK_PORT,
    *,
    address: str = "0.0.0.0",  # noqa: S104 - connected at once to the reference
    bursts: int = 5,
    spacing_s: float = 0.1,
    patience_s: float = 1.0,
    clock: Clock = time.monotonic_ns,
) -> tuple[ClockExchange, ...]:
    """Query the reference and wait for the answers; by default 40 exchanges in half a second.

    Args:
        reference: IPv4 address of the responder
        port: UDP port of the responder
        address: address of this machine to send from
        bursts: number of bursts of `BURST` datagrams each
        spacing_s: seconds from the start of a burst to the start of the next
        patience_s: seconds to wait for answers after the last question
        clock: function that reads this machine's clock, in ns

    Raises:
        DeploymentError: no question was answered
    """
    with Exchanger(
        reference, port, address=address, bursts=bursts, spacing_s=spacing_s, clock=clock
    ) as exchanger:
        found = _run_exchanger(exchanger, patience_s)
        if not found:
            reason = f" ({exchanger.failure})" if exchanger.failure else ""
            raise DeploymentError(
                f"the clock of {reference} answered none of {exchanger.probes_sent}"
                f" questions{reason}: open UDP port {port} between the machines, and check that"
                " the responder is running"
            )
    return tuple(found)


def _net_ns(exchange_: ClockExchange) -> int:
    """Return the round-trip time in ns without the responder's processing time."""
    return (
        exchange_.returned_ns - exchange_.sent_ns - (exchange_.answered_ns - exchange_.received_ns)
    )


def _run_exchanger(exchanger: Exchanger, patience_s: float) -> list[ClockExchange]:
    found: list[ClockExchange] = []
    with select.epoll() as poll:
        poll.register(exchanger.fileno(), select.EPOLLIN)
        while (due_s := exchanger.due_s) is not None:
            poll.poll(due_s)
            found += exchanger.step()
        until_s = time.monotonic() + patience_s
        while exchanger.waiting and (left_s := until_s - time.monotonic()) > 0:
            poll.poll(left_s)
            found += exchanger.step()
    return found


def _bind_socket(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        made.bind((address, port))
    except OSError as error:
        made.close()
        raise DeploymentError(
            f"UDP {address}:{port} cannot be used for clock exchanges: {error}; "
            "it must be an IPv4 address of this machine and a free port"
        ) from error
    return made
