"""Limiter with many hosts: who is looked at, and how often."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Pipe
from typing import cast

import pytest

from laggard.network_emulation.compute.host_counters import host_tallies
from laggard.network_emulation.compute.limiter import Attach, LimitedHost, Limiter, SetShare
from laggard.network_emulation.compute.pulse import LATE_NS, PulseCounter
from laggard.network_emulation.compute.stop_signals import SignalGate

MS = 1_000_000


class _Gate(SignalGate):
    """Gate of which the kernel would stop the host, and which touches no process."""

    idle_ns = 1 * MS
    starves = True
    granted = 0

    def __init__(self, *, queue_remembers: bool = True) -> None:
        super().__init__()
        self.queue_remembers = queue_remembers
        self.slice_ns = 1 * MS

    def admit(self, pid: int) -> None:
        """Admit nobody."""

    def grant(self, least_ns: int = 0) -> None:
        self.granted += 1

    def was_stopped(self) -> bool:
        self.grant()
        return False


class _Host:
    """Host that wants the next look after a fixed time, and notes its looks."""

    def __init__(self, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        self.looks: list[tuple[int, int]] = []
        self.needs_looks = False

    def attach(self, pid: int, now_ns: int, **_: object) -> None:
        self.needs_looks = True

    def set_share(self, share: float, now_ns: int) -> None:
        """Accept any share."""

    def look(self, now_ns: int, elapsed_ns: int, others: Collection[object]) -> int:
        self.looks.append((now_ns, elapsed_ns))
        return now_ns + self.interval_ns


@contextmanager
def _limiter(hosts: dict[str, _Host]) -> Iterator[tuple[Limiter, object]]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield Limiter(cast("dict[str, LimitedHost]", hosts), theirs, PulseCounter()), ours


def _request(limiter: Limiter, connection: object, request: Attach | SetShare) -> None:
    connection.send(request)  # type: ignore[attr-defined]
    assert limiter._answer()
    assert isinstance(connection.recv(), int)  # type: ignore[attr-defined]


def test_only_hosts_that_are_due_are_looked_at() -> None:
    hosts = {"often": _Host(1 * MS), "rarely": _Host(10 * MS), "empty": _Host(1 * MS)}
    with _limiter(hosts) as (limiter, connection):
        _request(limiter, connection, Attach("often", 1))
        _request(limiter, connection, Attach("rarely", 2))
        began_ns = now_ns = time.monotonic_ns()
        while now_ns < began_ns + 100 * MS:
            now_ns = limiter.look(now_ns)
    assert len(hosts["often"].looks) == 100
    assert len(hosts["rarely"].looks) == 10
    assert hosts["empty"].looks == []
    for host in ("often", "rarely"):
        assert {elapsed for _, elapsed in hosts[host].looks[1:]} == {hosts[host].interval_ns}


def test_a_request_is_looked_at_at_once() -> None:
    hosts = {"a": _Host(1000 * MS)}
    with _limiter(hosts) as (limiter, connection):
        assert limiter.look(time.monotonic_ns()) > time.monotonic_ns() + 10**15
        _request(limiter, connection, Attach("a", 1))
        limiter.look(time.monotonic_ns())
        limiter.look(time.monotonic_ns())
        _request(limiter, connection, SetShare("a", 0.5))
        limiter.look(time.monotonic_ns())
    assert len(hosts["a"].looks) == 2


@pytest.mark.parametrize(
    ("share", "queue_remembers", "expected_ms"),
    [(0.5, True, 1), (0.05, True, 1), (0.01, True, 3), (0.001, True, 5), (0.001, False, 1)],
)
def test_an_idle_host_is_looked_at_rarely_if_its_share_is_small(
    share: float, queue_remembers: bool, expected_ms: int
) -> None:
    """The kernel stops it in time; signals come from the limiter, so it must look in time."""
    gate = _Gate(queue_remembers=queue_remembers)
    host = LimitedHost(share, gate, host_tallies(["a"])["a"])
    sleeper = os.fork()
    if sleeper == 0:
        time.sleep(60)
        os._exit(0)
    try:
        time.sleep(0.05)
        host.attach(sleeper, time.monotonic_ns())
        now_ns = time.monotonic_ns()
        due_ns = host.look(now_ns, 0)
        assert due_ns % MS == 0, "one wake-up serves all idle hosts"
        assert expected_ms <= (due_ns - now_ns) // MS <= expected_ms + 1
    finally:
        os.kill(sleeper, 9)
        os.waitpid(sleeper, 0)


def test_what_others_used_is_counted_when_a_process_has_ended() -> None:
    """In a look that comes late, a process has ended, and another has computed all the time."""
    tally = host_tallies(["a"])["a"]
    host = LimitedHost(0.5, _Gate(), tally)
    sleeper = os.fork()
    if sleeper == 0:
        time.sleep(60)
        os._exit(0)
    host.attach(os.getpid(), time.monotonic_ns())
    host.attach(sleeper, time.monotonic_ns())
    host.look(time.monotonic_ns(), 0)
    before, began_ns = tally.read().due_ns, time.process_time_ns()
    os.kill(sleeper, 9)
    os.waitpid(sleeper, 0)
    while time.process_time_ns() < began_ns + 20 * MS:
        pass
    for _ in range(2):
        host.look(time.monotonic_ns(), 20 * MS)
    assert tally.read().due_ns - before >= 20 * MS / 0.5


def test_only_much_too_late_wake_ups_stall_a_limiter() -> None:
    pulse = PulseCounter()
    for late_ns in (-5, 0, LATE_NS, LATE_NS + 1, 3 * LATE_NS):
        pulse.beat(7 + late_ns, late_ns)
    assert pulse.read().beat_ns == 7 + 3 * LATE_NS
    assert pulse.read().stalled_ns == 4 * LATE_NS + 1
