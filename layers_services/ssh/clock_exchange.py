"""Asks a reference node what time it is, over UDP, and answers such questions: the exchanges that
`laggard.core.clocks.clock_fit` fits.

A burst is a few datagrams, each sent when the one before was answered, or should have been: the
first wakes the machines up and the others find them awake. What matters is the fastest exchange in
either direction, so a lost, late or reordered one costs nothing. Stamps are taken in user space
next to the system calls, since the kernel's own are of another clock; what passes between counts as
delay, which makes the bound wider and never wrong. Question and answer have the same size: on a
slow link they take equally long, and nobody can use the responder to multiply traffic.
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
"""UDP port of the responder; below the ports that Linux gives to clients."""

BURST = 8
"""Datagrams of a burst."""

PATIENCE_S = 10.0
"""How long an answer is waited for while other bursts go on; a full queue of a slow link takes
seconds."""

_DATAGRAM = struct.Struct("!4sQIqq")  # kind, nonce, number, received_ns, answered_ns
_QUESTION, _ANSWER = b"LgQ1", b"LgA1"
_AT_ONCE = 64

Clock = Callable[[], int]
_log = logging.getLogger(__name__)


class Responder:
    """Tells everybody who asks its clock's time; use it as a context manager, in an event loop of
    yours or by `serve_clock`.

    Attributes:
        answered: questions answered so far.
        foreign: other datagrams that came, and were ignored.
        unsent: answers that the kernel would not send.
    """

    def __init__(
        self, address: str, port: int = CLOCK_PORT, *, clock: Clock = time.monotonic_ns
    ) -> None:
        """Bind to an IPv4 address of this machine; port 0 is any free one.

        Raises:
            DeploymentError: the address is not this machine's, or the port is taken.
        """
        self.answered = self.foreign = self.unsent = 0
        self._clock = clock
        self._socket = _bind_socket(address, port)
        self._buffer = bytearray(_DATAGRAM.size + 1)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    def fileno(self) -> int:
        """The descriptor that is readable when `answer` has something to do."""
        return self._socket.fileno()

    def answer(self) -> None:
        """Answer what waits, without blocking."""
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
                # As good as lost on the way, which the asker has to bear anyhow.
                self.unsent += 1
                _log.debug("answer to %s not sent: %s", asker, error)

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
    """Answer questions on an address of this machine until the descriptor `stop` becomes readable
    or is closed at its other end.

    Raises:
        DeploymentError: the address is not this machine's, or the port is taken.
    """
    with Responder(address, port, clock=clock) as responder:
        responder.serve(stop)


class Exchanger:
    """Asks the reference in bursts, driven by an event loop: wait for `fileno` at most `due_s`,
    then call `step`.

    A loop that calls late loses no exchange, and each call sends one datagram at most; the bound
    gets wider, not wrong. An exchanger that goes on for ever ends a burst as soon as an answer came
    about as fast as the fastest ever, since both of its ways were then fast: on idle networks two
    or three datagrams do.

    Attributes:
        probes_sent: questions sent so far.
        answered: exchanges so far.
        foreign: datagrams that were no answer to a question of ours, and were ignored.
        failure: the last thing that the kernel said against sending or receiving, such as that
            nobody listens; None if nothing.
    """

    def __init__(
        self,
        reference: str,
        port: int = CLOCK_PORT,
        *,
        # Connected at once, so that only the reference is heard.
        address: str = "0.0.0.0",  # noqa: S104
        bursts: int | None = None,
        spacing_s: float = 1.0,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        """Prepare to ask; the first datagram goes with the first `step`.

        Args:
            reference: the responder's IPv4 address.
            port: the responder's.
            address: of this machine, to ask from.
            bursts: how many; None goes on for ever.
            spacing_s: from the start of a burst to that of the next.
            clock: reads this machine's clock, in ns.

        Raises:
            DeploymentError: the address is not this machine's, or there is no route.
        """
        self.probes_sent = self.answered = self.foreign = 0
        self.failure: OSError | None = None
        self._clock = clock
        self._bursts_left = bursts
        self._spacing_s = spacing_s
        self._gap_s = spacing_s / BURST
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
                f"no way to the clock of {reference} from {address}: {error}; check the routes"
            ) from error

    def fileno(self) -> int:
        """The descriptor that is readable when an answer came."""
        return self._socket.fileno()

    @property
    def due_s(self) -> float | None:
        """Seconds until `step` is to be called even if no answer comes; None when all is sent."""
        return None if self._is_through() else max(0.0, self._next_s - time.monotonic())

    @property
    def waiting(self) -> int:
        """Questions that may still be answered."""
        return len(self._waiting)

    def step(self) -> tuple[ClockExchange, ...]:
        """Take the answers that came and ask what is due, without blocking."""
        exchanges = self._receive()
        now_s = time.monotonic()
        if exchanges and self._burst_left:
            self._next_s = now_s
            self._spare(exchanges)
        if not self._is_through() and now_s >= self._next_s:
            self._send_probe(now_s)
        return exchanges

    def close(self) -> None:
        """Stop asking."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_through(self) -> bool:
        return not self._burst_left and self._bursts_left == 0

    def _spare(self, exchanges: Sequence[ClockExchange]) -> None:
        """End an endless exchanger's burst when the others could hardly be faster than what
        came.
        """
        fastest_ns = min(_net_ns(each) for each in exchanges)
        if (
            self._fastest_ns is not None
            and self._bursts_left is None
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
        return (
            ClockExchange(sent_ns, received_ns, answered_ns, returned_ns)
            if answered_ns >= received_ns
            else None
        )

    def _note(self, error: OSError) -> None:
        """Remember an error that is as good as a loss: nobody listens yet, no buffer, a route that
        comes and goes.
        """
        self.failure = error
        _log.debug("clock exchange %d: %s", self.probes_sent, error)


def exchange_clocks(
    reference: str,
    port: int = CLOCK_PORT,
    *,
    address: str = "0.0.0.0",  # noqa: S104 - connected at once, so that only the reference is heard
    bursts: int = 5,
    spacing_s: float = 0.1,
    patience_s: float = 1.0,
    clock: Clock = time.monotonic_ns,
) -> tuple[ClockExchange, ...]:
    """Ask the reference and wait for the answers: 40 exchanges in half a second, unless told
    otherwise.

    Args:
        reference: the responder's IPv4 address.
        port: the responder's.
        address: of this machine, to ask from.
        bursts: how many, of `BURST` datagrams each.
        spacing_s: from the start of a burst to that of the next.
        patience_s: how long to wait for answers after the last question.
        clock: reads this machine's clock, in ns.

    Raises:
        DeploymentError: no question was answered.
    """
    with Exchanger(
        reference, port, address=address, bursts=bursts, spacing_s=spacing_s, clock=clock
    ) as exchanger:
        found = _run_exchanger(exchanger, patience_s)
        if not found:
            reason = f" ({exchanger.failure})" if exchanger.failure else ""
            raise DeploymentError(
                f"the clock of {reference} answered none of {exchanger.probes_sent}"
                f" questions{reason}: UDP port {port} must pass between the machines, and the"
                " responder must run there"
            )
    return tuple(found)


def _net_ns(exchange_: ClockExchange) -> int:
    """Time on the way, there and back."""
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
