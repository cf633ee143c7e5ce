"""An emulated drive against arithmetic: bytes over bandwidth plus latency, whoever shares it, wakes
late, is killed or changes it."""

from __future__ import annotations

import fcntl
import os
import signal
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
from laggard.core.linux import minimize_timer_slack
from laggard.network_emulation.forked import end_companion, fork_companion

pytestmark = pytest.mark.alone

LATE_S = 0.05
"""How much later than due a process may wake on a busy machine; never earlier."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "drive"


@pytest.fixture
def make(path: Path) -> Iterator[Callable[..., Drive]]:
    made: list[Drive] = []

    def build(sharers: int = 1, **limits: float) -> Drive:
        made.append(make_drive(path, DriveLimits(**limits), sharers))
        return made[-1]

    yield build
    for drive in made:
        drive.close()


def seconds(drive: Drive, direction: Direction, size_bytes: int, accesses: float = 1) -> float:
    began = time.monotonic()
    drive.transfer(direction, size_bytes, accesses)
    return time.monotonic() - began


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
        minimize_timer_slack()
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
    took_s = seconds(make(**limits), direction, size_bytes, accesses)
    assert expected_s - 1e-6 <= took_s < expected_s + LATE_S


def test_what_was_waited_for_before_counts(make: Callable[..., Drive]) -> None:
    """The worker's own copying goes on while the drive serves."""
    drive = make(read_mb_per_s=1.0)
    begun_ns = time.monotonic_ns()
    time.sleep(0.03)
    drive.transfer("read", 50_000, begun_ns=begun_ns)
    assert 0.05 <= (time.monotonic_ns() - begun_ns) / 1e9 < 0.05 + LATE_S


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


def test_processes_of_a_host_share_fairly_and_together_get_the_bandwidth(
    path: Path, make: Callable[..., Drive]
) -> None:
    drive = make(sharers=3, read_mb_per_s=3.0, write_mb_per_s=3.0)
    readers = [Reader(path, [(direction, 300_000)]) for direction in ("read", "read", "write")]
    spans = [reader.spans()[0] for reader in readers]
    took_s = (max(ended for _, ended in spans) - min(began for began, _ in spans)) / 1e9
    assert 0.3 <= took_s < 0.3 + LATE_S
    for began, ended in spans:
        assert (ended - began) / 1e9 == pytest.approx(took_s, rel=0.3)
    assert drive.counters() == DriveCounters(600_000, 0, 300_000, 0)


def test_many_reads_get_what_a_long_one_gets(path: Path, make: Callable[..., Drive]) -> None:
    make(sharers=2, read_mb_per_s=3.0)
    small, long = Reader(path, [("read", 7_500)] * 60), Reader(path, [("read", 300_000)])
    ((began, ended),) = long.spans()
    done = sum(7_500 for start, end in small.spans() if began <= start and end <= ended)
    assert done == pytest.approx(300_000, rel=0.35)


@pytest.mark.parametrize(("before", "after"), [(1.0, 20.0), (4.0, 0.5)])
def test_a_change_acts_within_a_transfer(
    path: Path, make: Callable[..., Drive], before: float, after: float
) -> None:
    drive = make(read_mb_per_s=before)
    size_bytes = round(before * 1e6 * 0.3)
    reader = Reader(path, [("read", size_bytes)])
    time.sleep(0.15)
    asked_ns = time.monotonic_ns()
    effective_ns = drive.set_limits(DriveLimits(read_mb_per_s=after))
    ((began_ns, ended_ns),) = reader.spans()
    assert effective_ns - asked_ns <= PIECE_NS + LATE_S * 1e9
    left = size_bytes - (effective_ns - began_ns) * before * 1e-3
    assert ended_ns - effective_ns == pytest.approx(left / after * 1e3, abs=LATE_S * 1e9)


def test_a_change_acts_within_an_access(make: Callable[..., Drive]) -> None:
    drive = make(read_latency_ms=60_000.0)
    signs: list[int] = []

    def on_wait() -> None:
        signs.append(time.monotonic_ns())
        if len(signs) == 5:
            drive.set_limits(DriveLimits())

    began_ns = time.monotonic_ns()
    drive.transfer("read", 0, on_wait=on_wait)
    assert time.monotonic_ns() - began_ns < 5 * PIECE_NS + LATE_S * 1e9
    assert len(signs) == 5


def test_who_wakes_late_has_lost_nothing(path: Path, make: Callable[..., Drive]) -> None:
    make(read_mb_per_s=1.0)
    reader = Reader(path, [("read", 300_000)])
    for _ in range(3):
        time.sleep(0.02)
        os.kill(reader.pid, signal.SIGSTOP)
        time.sleep(0.05)
        os.kill(reader.pid, signal.SIGCONT)
    ((began_ns, ended_ns),) = reader.spans()
    assert 0.3 <= (ended_ns - began_ns) / 1e9 < 0.3 + LATE_S


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
    assert seconds(drive, "read", 100_000) < 0.01 + LATE_S
    os.close(reading)


def test_counting_begins_anew(make: Callable[..., Drive]) -> None:
    drive = make(write_mb_per_s=100.0)
    drive.transfer("write", 1000, accesses=3)
    assert drive.counters() == DriveCounters(0, 0, 1000, 3)
    drive.reset_counters()
    assert drive.counters() == DriveCounters()
