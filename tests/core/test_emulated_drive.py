"""An emulated drive against arithmetic: bytes over bandwidth plus latency, whoever shares it, wakes
late, is killed or changes it. On a virtual clock exactly; on the real one, never early."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.emulated_drive import (
    PIECE_NS,
    Direction,
    Drive,
    DriveCounters,
    DriveLimits,
    make_drive,
)
from laggard.network_emulation.forked import end_companion, fork_companion

ROUNDING_S = 1e-6
"""What rounding the pieces of a transfer to nanoseconds adds up to at most."""


class VirtualTime:
    """A clock that passes only while all threads that `play` has started sleep; one of them runs at
    a time.

    Attributes:
        now_ns: the time.
        late_ns: how much later than asked every sleep ends.
    """

    def __init__(self, late_ns: int = 0) -> None:
        self.now_ns, self.late_ns = 1_000, late_ns
        self._wakes_ns: dict[int, int] = {}
        self._running: int | None = None
        self._turn = threading.Condition()

    def clock(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        wakes_ns = self.now_ns + round(seconds * 1e9) + self.late_ns
        if self._running is None:
            self.now_ns = wakes_ns
            return
        with self._turn:
            own = self._running
            self._wakes_ns[own] = wakes_ns
            self._wake_next()
            self._turn.wait_for(lambda: self._running == own)

    def play(self, *parts: Callable[[], object]) -> list[tuple[int, int]]:
        """Let every part run in a thread of its own; returns when each began and ended."""
        spans = dict.fromkeys(range(len(parts)), (0, 0))

        def run(own: int) -> None:
            with self._turn:
                self._turn.wait_for(lambda: self._running == own)
            began_ns = self.now_ns
            try:
                parts[own]()
            finally:
                spans[own] = began_ns, self.now_ns
                with self._turn:
                    del self._wakes_ns[own]
                    self._wake_next()

        self._wakes_ns = dict.fromkeys(spans, self.now_ns)
        threads = [threading.Thread(target=run, args=(own,)) for own in spans]
        for thread in threads:
            thread.start()
        with self._turn:
            self._wake_next()
        for thread in threads:
            thread.join()
        return list(spans.values())

    def _wake_next(self) -> None:
        self._running = min(self._wakes_ns, key=lambda each: self._wakes_ns[each], default=None)
        if self._running is not None:
            self.now_ns = max(self.now_ns, self._wakes_ns[self._running])
        self._turn.notify_all()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "drive"


@pytest.fixture
def make(path: Path) -> Iterator[Callable[..., Drive]]:
    made: list[Drive] = []

    def build(sharers: int = 1, virtual: VirtualTime | None = None, **limits: float) -> Drive:
        made.append(make_drive(path, DriveLimits(**limits), sharers))
        if virtual is not None:
            made.append(Drive(path, virtual.clock, virtual.sleep))
        return made[-1]

    yield build
    for drive in made:
        drive.close()


class Reader:
    """A process that transfers, one request after the other, and says how long each took."""

    def __init__(self, path: Path, requests: list[tuple[Direction, int]]) -> None:
        reading, writing = os.pipe()
        self.pid = fork_companion("reader", lambda: self._body(path, requests, writing))
        os.close(writing)
        assert os.read(reading, 6) == b"ready\n"
        self._answers = os.fdopen(reading)

    @staticmethod
    def _body(path: Path, requests: list[tuple[Direction, int]], writing: int) -> int:
        with Drive(path) as drive:
            os.write(writing, b"ready\n")
            for direction, size_bytes in requests:
                began_ns = time.monotonic_ns()
                drive.transfer(direction, size_bytes, accesses=0)
                os.write(writing, f"{began_ns} {time.monotonic_ns()}\n".encode())
        return 0

    def spans(self) -> list[tuple[int, int]]:
        with self._answers:
            lines = [line.split() for line in self._answers]
        end_companion(self.pid)
        return [(int(began), int(ended)) for began, ended in lines]


@pytest.mark.parametrize(
    ("limits", "direction", "size_bytes", "accesses", "expected_s"),
    [
        ({"read_mb_per_s": 2.0}, "read", 100_000, 1, 0.05),
        ({"write_mb_per_s": 1.0, "read_mb_per_s": 50.0}, "write", 80_000, 1, 0.08),
        ({"read_latency_ms": 4.0}, "read", 1 << 30, 5, 0.02),
        ({"read_latency_ms": 60.0, "read_mb_per_s": 1.0}, "read", 30_000, 1, 0.09),
        ({"write_latency_ms": 30.0}, "write", 1, 0.5, 0.015),
        ({"read_mb_per_s": 0.0001}, "read", 5, 1, 0.05),
        ({"read_mb_per_s": 1.0}, "write", 1 << 40, 1, 0.0),
        ({}, "read", 1 << 40, 100, 0.0),
    ],
)
def test_a_transfer_takes_its_latency_and_its_bytes_over_the_bandwidth(
    make: Callable[..., Drive],
    limits: dict[str, float],
    direction: Direction,
    size_bytes: int,
    accesses: float,
    expected_s: float,
) -> None:
    virtual = VirtualTime()
    began_ns = virtual.now_ns
    make(virtual=virtual, **limits).transfer(direction, size_bytes, accesses)
    assert (virtual.now_ns - began_ns) / 1e9 == pytest.approx(expected_s, abs=ROUNDING_S)
    began_ns = time.monotonic_ns()
    make(**limits).transfer(direction, size_bytes, accesses)
    assert (time.monotonic_ns() - began_ns) / 1e9 >= expected_s - ROUNDING_S, "never early"


def test_what_was_waited_for_before_counts(make: Callable[..., Drive]) -> None:
    """The worker's own copying goes on while the drive serves."""
    virtual = VirtualTime()
    drive = make(virtual=virtual, read_mb_per_s=1.0)
    begun_ns = virtual.now_ns
    virtual.sleep(0.03)
    drive.transfer("read", 50_000, begun_ns=begun_ns)
    assert (virtual.now_ns - begun_ns) / 1e9 == pytest.approx(0.05, abs=ROUNDING_S)


@given(st.integers(1, 10**7), st.floats(0.01, 1000.0), st.integers(1, 16))
def test_pieces_add_up_and_stay_short(size_bytes: int, mb_per_s: float, sharers: int) -> None:
    path = Path(f"/dev/shm/laggard-drive-{os.getpid()}")
    with make_drive(path, DriveLimits(read_mb_per_s=mb_per_s), sharers) as drive:
        path.unlink()
        begun_ns = at_ns = time.monotonic_ns()
        left, pieces = float(size_bytes), 0
        while left > 0 and pieces < 200:
            end_ns, served = drive._reserve_slot(0, left, at_ns)
            assert end_ns - at_ns <= PIECE_NS / sharers + 1
            at_ns, left, pieces = end_ns, left - served, pieces + 1
    expected_ns = (size_bytes - left) / mb_per_s * 1e3
    assert at_ns - begun_ns == pytest.approx(expected_ns, abs=pieces + 1)


def test_those_who_share_take_turns_and_together_get_the_bandwidth(
    make: Callable[..., Drive],
) -> None:
    virtual = VirtualTime()
    drive = make(3, virtual, read_mb_per_s=3.0, write_mb_per_s=3.0)
    directions: tuple[Direction, ...] = ("read", "read", "write")
    spans = virtual.play(
        *(lambda each=each: drive.transfer(each, 300_000, accesses=0) for each in directions)
    )
    took_s = [(ended - began) / 1e9 for began, ended in spans]
    assert max(took_s) == pytest.approx(0.3, abs=ROUNDING_S)
    assert min(took_s) >= 0.3 - 2 * PIECE_NS / 1e9 - ROUNDING_S, "the last pieces of the others"
    assert drive.counters() == DriveCounters(600_000, 0, 300_000, 0)


def test_processes_together_get_no_more_than_the_bandwidth(
    path: Path, make: Callable[..., Drive]
) -> None:
    drive = make(sharers=3, read_mb_per_s=3.0, write_mb_per_s=3.0)
    readers = [Reader(path, [(direction, 300_000)]) for direction in ("read", "read", "write")]
    spans = [reader.spans()[0] for reader in readers]
    took_s = (max(ended for _, ended in spans) - min(began for began, _ in spans)) / 1e9
    assert took_s >= 0.3 - ROUNDING_S
    assert drive.counters() == DriveCounters(600_000, 0, 300_000, 0)


def test_many_reads_get_what_a_long_one_gets(make: Callable[..., Drive]) -> None:
    virtual = VirtualTime()
    drive = make(2, virtual, read_mb_per_s=3.0)
    ended_ns: list[int] = []

    def read_often() -> None:
        for _ in range(60):
            drive.transfer("read", 7_500, accesses=0)
            ended_ns.append(virtual.now_ns)

    _, (_, long_ended_ns) = virtual.play(
        read_often, lambda: drive.transfer("read", 300_000, accesses=0)
    )
    done = sum(7_500 for each in ended_ns if each <= long_ended_ns)
    assert done == pytest.approx(300_000, abs=2 * 7_500)


@pytest.mark.parametrize(("before", "after"), [(1.0, 20.0), (4.0, 0.5)])
def test_a_change_acts_within_a_transfer(
    make: Callable[..., Drive], before: float, after: float
) -> None:
    virtual = VirtualTime()
    drive = make(virtual=virtual, read_mb_per_s=before)
    size_bytes = round(before * 1e6 * 0.3)
    asked_ns: list[int] = []
    effective_ns: list[int] = []

    def change() -> None:
        virtual.sleep(0.152)
        asked_ns.append(virtual.now_ns)
        effective_ns.append(drive.set_limits(DriveLimits(read_mb_per_s=after)))

    (began_ns, ended_ns), _ = virtual.play(
        lambda: drive.transfer("read", size_bytes, accesses=0), change
    )
    assert 0 <= effective_ns[0] - asked_ns[0] <= PIECE_NS
    left = size_bytes - (effective_ns[0] - began_ns) * before * 1e-3
    assert ended_ns - effective_ns[0] == pytest.approx(left / after * 1e3, abs=1e3)


def test_a_change_acts_within_an_access(make: Callable[..., Drive]) -> None:
    virtual = VirtualTime()
    drive = make(virtual=virtual, read_latency_ms=60_000.0)
    signs: list[int] = []

    def on_wait() -> None:
        signs.append(virtual.now_ns)
        if len(signs) == 5:
            drive.set_limits(DriveLimits())

    began_ns = virtual.now_ns
    drive.transfer("read", 0, on_wait=on_wait)
    assert [each - began_ns for each in signs] == [i * PIECE_NS for i in range(1, 6)]
    assert virtual.now_ns == signs[-1]


def test_who_wakes_late_has_lost_nothing(make: Callable[..., Drive]) -> None:
    virtual = VirtualTime(late_ns=PIECE_NS // 2)
    drive = make(virtual=virtual, read_mb_per_s=1.0)
    began_ns = virtual.now_ns
    drive.transfer("read", 300_000)
    late_ns = virtual.now_ns - began_ns - 300_000_000
    assert late_ns == pytest.approx(virtual.late_ns, abs=1e3), "of sixty pieces the last one's"


def test_a_killed_holder_of_the_lock_blocks_nobody(path: Path, make: Callable[..., Drive]) -> None:
    drive = make(read_mb_per_s=10.0)
    reading, writing = os.pipe()

    def hold() -> int:
        own = Drive(path)
        fcntl.lockf(own._file, fcntl.LOCK_EX)
        os.write(writing, b"held")
        signal.pause()
        return 0

    pid = fork_companion("holder", hold)
    os.close(writing)
    assert os.read(reading, 4) == b"held"
    with pytest.raises(BlockingIOError):
        fcntl.lockf(drive._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    end_companion(pid)
    drive.transfer("read", 100_000)
    assert drive.counters() == DriveCounters(100_000, 1, 0, 0)
    os.close(reading)


def test_counting_begins_anew(make: Callable[..., Drive]) -> None:
    drive = make(write_mb_per_s=100.0)
    drive.transfer("write", 1000, accesses=3)
    assert drive.counters() == DriveCounters(0, 0, 1000, 3)
    drive.reset_counters()
    assert drive.counters() == DriveCounters()
