"""Real datagrams: over loopback, by way of a network that loses, doubles and forges, and over
emulated links with load."""

from __future__ import annotations

import itertools
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from laggard.core.clocks.timestamps import ClockExchange
from laggard.core.errors import DeploymentError
from laggard.core.linux import inside_network
from laggard.layers_services.ssh.clock_exchange import (
    BURST,
    CLOCK_PORT,
    Exchanger,
    Responder,
    exchange_clocks,
    serve_clock,
)
from laggard.network_emulation.fidelity.probes.endpoint import socket_in
from laggard.network_emulation.forked import end_companion, fork_companion
from laggard.network_emulation.link_plan import Constraint, LinkPlan
from laggard.network_emulation.links.userspace import UserspaceBackend
from tests.faults import Fault, holds
from tests.network_emulation.emulated import Continuum, in_sandbox, make_hosts, needs_tun

LOOPBACK = "127.0.0.1"
SECOND = 1_000_000_000
PATIENCE_S = 60.0
DATAGRAM_BYTES = 32
READING_NS = 2


@dataclass(frozen=True)
class SkewedClock:
    """This machine's clock, shown `skew_ns` ahead and running `drift_ppb` faster, so that the truth
    is known."""

    skew_ns: int
    drift_ppb: int
    origin_ns: int

    def __call__(self) -> int:
        return self.at(time.monotonic_ns())

    def at(self, true_ns: int) -> int:
        return true_ns + self.skew_ns + (true_ns - self.origin_ns) * self.drift_ppb // SECOND


@pytest.fixture
def responder() -> Iterator[Responder]:
    with Responder(LOOPBACK, 0) as made:
        yield made


def readable(*waiting: Responder | Exchanger | socket.socket) -> bool:
    """Whether one of them has something to read before patience ends."""
    return bool(select.select(waiting, [], [], PATIENCE_S)[0])


def talk(exchanger: Exchanger, responder: Responder) -> list[ClockExchange]:
    """Drive both to the end in one thread."""
    found: list[ClockExchange] = []
    while (due_s := exchanger.due_s) is not None or exchanger.waiting:
        select.select([exchanger, responder], [], [], due_s)
        responder.answer()
        found += exchanger.step()
    return found


def test_bursts_are_asked_and_answered(responder: Responder) -> None:
    start_ns = time.monotonic_ns()
    with Exchanger(LOOPBACK, responder.port, bursts=3, spacing_s=0.02) as exchanger:
        found = talk(exchanger, responder)
        assert (
            exchanger.probes_sent
            == exchanger.answered
            == responder.answered
            == len(found)
            == 3 * BURST
        )
        assert exchanger.foreign == responder.foreign == responder.unsent == 0
        assert exchanger.failure is None
    end_ns = time.monotonic_ns()
    stamps = [
        stamp for e in found for stamp in (e.sent_ns, e.received_ns, e.answered_ns, e.returned_ns)
    ]
    assert stamps == sorted(stamps)
    assert start_ns <= stamps[0]
    assert stamps[-1] <= end_ns
    assert found[2 * BURST].sent_ns - found[0].sent_ns >= 0.04 * SECOND


def test_a_loop_that_calls_late_sends_one_datagram_at_a_time(responder: Responder) -> None:
    with Exchanger(LOOPBACK, responder.port, spacing_s=0.001) as exchanger:
        assert exchanger.due_s == 0.0
        for asked in range(1, 4):
            deadline_s = time.monotonic() + PATIENCE_S
            while exchanger.due_s and time.monotonic() < deadline_s:
                select.select([], [], [], exchanger.due_s)
            exchanger.step()
            assert exchanger.probes_sent == asked == exchanger.waiting
        assert exchanger.due_s is not None


def test_an_endless_exchanger_asks_no_more_than_it_needs() -> None:
    """With clocks by which every exchange is equally fast: a second one confirms the first, then
    one a burst does."""
    readings = itertools.count(0, 1000)
    with (
        Responder(LOOPBACK, 0, clock=lambda: 0) as responder,
        Exchanger(
            LOOPBACK, responder.port, spacing_s=0.02, clock=lambda: next(readings)
        ) as exchanger,
    ):
        start_s, found = time.monotonic(), 0
        while found < 5:
            select.select([exchanger, responder], [], [], exchanger.due_s)
            responder.answer()
            found += len(exchanger.step())
        assert exchanger.probes_sent == 5
        assert time.monotonic() - start_s >= 3 * 0.02


@dataclass
class Middleman:
    """The network between: what the exchanger sends arrives here, and what it gets is sent from
    here."""

    inside: socket.socket
    outside: socket.socket
    asker: tuple[str, int] = ("", 0)

    def question(self) -> bytes:
        assert readable(self.inside)
        datagram, self.asker = self.inside.recvfrom(2048)
        return datagram

    def answer_to(self, question: bytes, responder: Responder) -> bytes:
        self.outside.sendto(question, (LOOPBACK, responder.port))
        assert readable(responder)
        responder.answer()
        assert readable(self.outside)
        return self.outside.recv(2048)

    def deliver(self, datagram: bytes) -> None:
        self.inside.sendto(datagram, self.asker)

    @property
    def port(self) -> int:
        return int(self.inside.getsockname()[1])


@pytest.fixture
def middleman() -> Iterator[Middleman]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inside,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside,
    ):
        for each in (inside, outside):
            each.bind((LOOPBACK, 0))
        yield Middleman(inside, outside)


@holds(Fault.DATAGRAM_FORGED)
def test_lost_late_doubled_and_forged_datagrams_do_no_harm(
    responder: Responder, middleman: Middleman
) -> None:
    with Exchanger(LOOPBACK, middleman.port, bursts=1, spacing_s=0.001) as exchanger:
        questions = []
        while exchanger.due_s is not None:
            select.select([], [], [], exchanger.due_s)
            exchanger.step()
        questions = [middleman.question() for _ in range(BURST)]
        assert {len(question) for question in questions} == {DATAGRAM_BYTES}
        assert len(set(questions)) == BURST
        answers = [middleman.answer_to(question, responder) for question in questions]
        assert {len(answer) for answer in answers} == {DATAGRAM_BYTES}
        foreign = [
            b"",
            b"x",
            answers[0][:-1],
            answers[0] + b"\0",
            bytes(2000),
            questions[0],  # a reflection
            answers[0][:4] + bytes(8) + answers[0][12:],  # another's nonce
            answers[0][:12] + b"\0\0\xff\xff" + answers[0][16:],  # never asked
        ]
        for datagram in foreign:
            middleman.deliver(datagram)
        for answer in reversed(answers[2:]):  # the first two are lost
            middleman.deliver(answer)
            middleman.deliver(answer)
        found: list[ClockExchange] = []
        while len(found) < BURST - 2 or exchanger.foreign < len(foreign) + BURST - 2:
            assert readable(exchanger)
            found += exchanger.step()
        assert exchanger.foreign == len(foreign) + BURST - 2
        assert exchanger.waiting == 2
    assert [e.sent_ns for e in found] == sorted((e.sent_ns for e in found), reverse=True)
    assert all(e.sent_ns < e.received_ns <= e.answered_ns < e.returned_ns for e in found)


@pytest.mark.parametrize(
    ("received_ns", "answered_ns"),
    [(2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (0, 2**63 - 1), (5, 4)],
)
def test_impossible_times_of_the_reference_are_ignored(
    responder: Responder, middleman: Middleman, received_ns: int, answered_ns: int
) -> None:
    with Exchanger(LOOPBACK, middleman.port, bursts=1, spacing_s=0.001) as exchanger:
        assert exchanger.step() == ()
        answer = middleman.answer_to(middleman.question(), responder)
        middleman.deliver(answer[:16] + struct.pack("!qq", received_ns, answered_ns))
        while not exchanger.foreign:
            assert readable(exchanger)
            assert exchanger.step() == ()


def test_the_responder_ignores_what_is_no_question(responder: Responder) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect((LOOPBACK, responder.port))
        for datagram in (
            b"",
            b"LgQ1",
            b"LgQ1" + bytes(27),
            b"LgQ1" + bytes(29),
            b"LgA1" + bytes(28),
            bytes(32),
        ):
            stranger.send(datagram)
        stranger.send(b"LgQ1" + bytes(28))
        while responder.answered < 1:
            assert readable(responder)
            responder.answer()
        assert responder.foreign == 6
        assert len(stranger.recv(2048)) == DATAGRAM_BYTES


def test_nobody_there_is_told_with_the_port_and_the_fix() -> None:
    with Responder(LOOPBACK, 0) as gone:
        port = gone.port
    with pytest.raises(
        DeploymentError, match=rf"none of 8 questions \(.*refused\): open UDP port {port}"
    ):
        exchange_clocks(LOOPBACK, port, bursts=1, patience_s=0.05)


def test_addresses_that_cannot_be_used_are_refused(responder: Responder) -> None:
    with pytest.raises(DeploymentError, match=rf"192\.0\.2\.1:{CLOCK_PORT} cannot be used"):
        Responder("192.0.2.1", CLOCK_PORT)
    with pytest.raises(DeploymentError, match="in use"):
        Responder(LOOPBACK, responder.port)
    with pytest.raises(DeploymentError, match=r"192\.0\.2\.1:0 cannot be used"):
        Exchanger(LOOPBACK, address="192.0.2.1")


def test_serving_ends_with_the_other_end_of_a_pipe() -> None:
    with Responder(LOOPBACK, 0) as probe:
        port = probe.port
    reading, writing = os.pipe()

    def answer() -> int:
        os.close(writing)
        serve_clock(LOOPBACK, port, stop=reading)
        return 7

    child = fork_companion("test-clock", answer)
    os.close(reading)
    deadline_s = time.monotonic() + PATIENCE_S
    found: tuple[ClockExchange, ...] = ()
    while not found and time.monotonic() < deadline_s:
        try:
            found = exchange_clocks(LOOPBACK, port, bursts=2, spacing_s=0.01, patience_s=0.1)
        except DeploymentError:
            continue  # it does not listen yet
    assert found
    os.close(writing)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_process_that_exchanges_can_fork() -> None:
    """An agent forks its ranks and must have one thread until then; numpy starts some."""
    code = (
        "import sys, laggard.layers_services.ssh.clock_exchange as made; sys.exit('numpy' in"
        " sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


CLOUD, _, EDGE1, EDGE2 = (host.name for host in make_hosts())
DELAYS_MS = {EDGE1: (5.0, 5.0), EDGE2: (5.0, 40.0)}
RATE_MBPS = 10.0
SKEWS = {EDGE1: (-700 * SECOND, 150_000), EDGE2: (300 * SECOND, -90_000)}


@dataclass(frozen=True)
class Observed:
    """What a node saw, and true times with what its clock showed then."""

    exchanges: tuple[ClockExchange, ...]
    true_ns: tuple[int, ...]
    local_ns: tuple[int, ...]


def over_loaded_links(continuum: Continuum) -> dict[str, Observed]:
    pairs = {}
    for edge, (there_ms, back_ms) in DELAYS_MS.items():
        pairs[edge, CLOUD] = Constraint(there_ms, rate_mbps=RATE_MBPS)
        pairs[CLOUD, edge] = Constraint(back_ms, rate_mbps=RATE_MBPS)
    backend = UserspaceBackend.start(LinkPlan(continuum.hosts, pairs), continuum.namespaces)
    address = continuum.endpoints[CLOUD].address
    reading, writing = os.pipe()
    with inside_network(continuum.namespaces[CLOUD]):
        responder = Responder(address)

    def answer() -> int:
        os.close(writing)
        responder.serve(reading)
        return 0

    companions = [fork_companion("test-clock", answer)]
    responder.close()
    clocks = {edge: SkewedClock(*SKEWS[edge], time.monotonic_ns()) for edge in DELAYS_MS}
    try:
        start_ns = time.monotonic_ns()
        found = {edge: list(ask(continuum, edge, clocks[edge])) for edge in DELAYS_MS}
        companions.append(fork_companion("test-load", lambda: load(continuum)))
        during(continuum, clocks, found)
        end_companion(companions.pop())
        for edge in DELAYS_MS:
            found[edge] += ask(continuum, edge, clocks[edge])
        end_ns = time.monotonic_ns()
    finally:
        os.close(writing)
        for companion in companions:
            end_companion(companion)
    backend.close()
    span_ns = end_ns - start_ns
    true_ns = tuple(start_ns + span_ns * tenth // 10 for tenth in range(-2, 13))
    return {
        edge: Observed(
            tuple(found[edge]), true_ns, tuple(clocks[edge].at(each) for each in true_ns)
        )
        for edge in DELAYS_MS
    }


def ask(continuum: Continuum, edge: str, clock: SkewedClock) -> tuple[ClockExchange, ...]:
    own, reference = continuum.endpoints[edge].address, continuum.endpoints[CLOUD].address
    with inside_network(continuum.namespaces[edge]):
        return exchange_clocks(
            reference, address=own, bursts=3, spacing_s=0.1, patience_s=3.0, clock=clock
        )


def during(
    continuum: Continuum, clocks: dict[str, SkewedClock], found: dict[str, list[ClockExchange]]
) -> None:
    """Both nodes' exchangers in one event loop, as an agent has it, until each has met a queue."""
    exchangers = {}
    for edge, clock in clocks.items():
        with inside_network(continuum.namespaces[edge]):
            exchangers[edge] = Exchanger(
                continuum.endpoints[CLOUD].address, spacing_s=0.25, clock=clock
            )
    deadline_s = time.monotonic() + PATIENCE_S
    while any(
        exchanger.answered < 10 or not met_a_queue(found[edge], edge)
        for edge, exchanger in exchangers.items()
    ):
        assert time.monotonic() < deadline_s
        select.select(
            list(exchangers.values()),
            [],
            [],
            min(each.due_s or 0.0 for each in exchangers.values()),
        )
        for edge, exchanger in exchangers.items():
            found[edge] += exchanger.step()
    for exchanger in exchangers.values():
        exchanger.close()


def met_a_queue(exchanges: list[ClockExchange], edge: str) -> bool:
    slowest_ns = max(each.returned_ns - each.sent_ns for each in exchanges)
    return slowest_ns > sum(DELAYS_MS[edge]) * 1e6 + 50e6


def load(continuum: Continuum) -> int:
    """Datagrams at one and a half times the links' rate, for half of the time, both ways: queues of
    up to 0.25 s."""
    sockets = []
    for edge in DELAYS_MS:
        for src, dst in ((edge, CLOUD), (CLOUD, edge)):
            sockets.append(socket_in(continuum.endpoints[src], socket.SOCK_DGRAM))
            sockets[-1].connect((continuum.endpoints[dst].address, 9))
    start_s, sent = time.monotonic(), 0.0
    while True:
        passed_s = time.monotonic() - start_s
        due = (passed_s // 1.0 * 0.5 + min(passed_s % 1.0, 0.5)) * 1.5 * RATE_MBPS * 1e6 / 8 / 1514
        while sent < due:
            for each in sockets:
                try:
                    each.send(bytes(1472))
                except (ConnectionRefusedError, BlockingIOError):
                    # nobody listens, or the device's own queue is full: either is load enough
                    continue
            sent += 1
        time.sleep(0.001)


@needs_tun
def test_the_truth_is_inside_the_bound_over_loaded_links() -> None:
    # here, since the sandbox must be entered by a process without numpy's threads
    import numpy as np

    from laggard.core.clocks.clock_fit import fit_clock

    seen = in_sandbox(over_loaded_links)
    for edge, observed in seen.items():
        fit = fit_clock(observed.exchanges)
        local, truth = np.array(observed.local_ns), np.array(observed.true_ns)
        wrong, bound = np.abs(fit.to_reference(local) - truth), fit.error_ns(local)
        assert (wrong <= bound + READING_NS).all(), edge
        for piece in fit.drift_pieces:
            assert piece.drift_ppm == pytest.approx(
                -SKEWS[edge][1] / 1e3, abs=piece.drift_error_ppm + 1.0
            )
