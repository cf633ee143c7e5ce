"""Emulated drive of a host: a queue in shared memory in which readers and writers wait.

A kernel's throttle sees neither the page cache nor arrays in memory, and needs root. Therefore
readers and writers apply the drive's limits to themselves. The drive serves one transfer at a
time, first come first served, in pieces. Several processes share it fairly because they take turns
with their pieces.

The end of a piece is computed from the end of the piece before it, so a process that wakes late
loses nothing. Latency does not occupy the queue, because accesses of several processes spend it in
parallel.

The queue is locked with fcntl(2), so the kernel drops the lock of a process that is killed. Limits
are changed without the lock.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

Direction = Literal["read", "write"]

PIECE_NS = 5_000_000
"""Longest real time that one round of pieces takes, with one piece per process of the host.

A change of limits therefore takes effect within this time.
"""

# Layout of the shared memory, in words of eight bytes: four limits (doubles), then 64-bit integers:
# the number of sharers, the end of the queue, and four counters.
_WORDS = 10
_LIMITS = {"read": (0, 2), "write": (1, 3)}
_SHARERS, _BUSY_UNTIL_NS = 4, 5
_COUNTS = {"read": (6, 7), "write": (8, 9)}


@dataclass(frozen=True)
class DriveLimits:
    """Bandwidth and latency of a drive; real or virtual, depending on the context.

    Attributes:
        read_mb_per_s: bandwidth of reading, in 10^6 bytes per second; None for no limit.
        write_mb_per_s: bandwidth of writing, in 10^6 bytes per second; None for no limit.
        read_latency_ms: additional time of every read access.
        write_latency_ms: additional time of every write access.
    """

    read_mb_per_s: float | None = None
    write_mb_per_s: float | None = None
    read_latency_ms: float = 0.0
    write_latency_ms: float = 0.0


@dataclass(frozen=True)
class DriveCounters:
    """Bytes and accesses requested from a drive so far."""

    read_bytes: int = 0
    read_accesses: int = 0
    write_bytes: int = 0
    write_accesses: int = 0


class Drive:
    """Emulated drive of one host, mapped from its file.

    Each thread needs a `Drive` object of its own, and threads of one process also need a lock
    between them, because fcntl locks belong to the process.

    Args:
        path: the drive's file, as created by `make_drive`.
        clock: clock of the drive's queue, in nanoseconds; the same for all processes that share
            the drive.
        sleep: function that waits for a number of seconds of that clock.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._memory = mmap.mmap(self._file, _WORDS * 8)
        whole = memoryview(self._memory)
        self._limits, self._words = whole[: 4 * 8].cast("d"), whole.cast("q")

    def set_limits(self, limits: DriveLimits) -> int:
        """Change the limits, also for transfers in progress.

        Returns:
            CLOCK_MONOTONIC nanoseconds at which the last piece under the old limits has been
            served.
        """
        self._limits[0] = _bytes_per_ns(limits.read_mb_per_s)
        self._limits[1] = _bytes_per_ns(limits.write_mb_per_s)
        self._limits[2] = limits.read_latency_ms * 1e6
        self._limits[3] = limits.write_latency_ms * 1e6
        return max(self._clock(), self._words[_BUSY_UNTIL_NS])

    def transfer(
        self,
        direction: Direction,
        size_bytes: int,
        accesses: float = 1,
        begun_ns: int | None = None,
        on_wait: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait for as long as the drive needs for a transfer.

        Args:
            direction: read or write.
            size_bytes: number of bytes transferred.
            accesses: number of times that the latency is paid, one after the other.
            begun_ns: CLOCK_MONOTONIC nanoseconds at which the transfer was requested; now if None.
            on_wait: function that is called repeatedly while waiting.
        """
        ready_ns = self._clock() if begun_ns is None else begun_ns
        ready_ns = self._wait_latency(_LIMITS[direction][1], accesses, ready_ns, on_wait)
        rate, left = _LIMITS[direction][0], float(size_bytes)
        self._count_transfer(direction, size_bytes, math.ceil(accesses))
        while left > 0 and self._limits[rate] < math.inf:
            ready_ns, served = self._reserve_slot(rate, left, ready_ns)
            left -= served
            self._sleep_until(ready_ns)
            on_wait()

    def counters(self) -> DriveCounters:
        """Return the bytes and accesses requested so far."""
        return DriveCounters(
            *(self._words[i] for direction in ("read", "write") for i in _COUNTS[direction])
        )

    def reset_counters(self) -> None:
        """Set the counters to zero."""
        for places in _COUNTS.values():
            for place in places:
                self._words[place] = 0

    def close(self) -> None:
        """Close this process's mapping of the drive; other processes can still use it."""
        self._limits.release()
        self._words.release()
        self._memory.close()
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_latency(
        self, latency: int, accesses: float, ready_ns: int, on_wait: Callable[[], object]
    ) -> int:
        """Wait for the latency of some accesses; return when the wait ends.

        The wait is divided into parts, so that a change of limits takes effect within one access.
        """
        left = float(accesses)
        while left > 0 and (each_ns := self._limits[latency]) > 0:
            part = min(left, PIECE_NS / each_ns)
            left -= part
            ready_ns += round(part * each_ns)
            self._sleep_until(ready_ns)
            on_wait()
        return ready_ns

    def _sleep_until(self, when_ns: int) -> None:
        left_ns = when_ns - self._clock()
        if left_ns > 0:
            self._sleep(left_ns / 1e9)

    def _reserve_slot(self, rate: int, left: float, ready_ns: int) -> tuple[int, float]:
        """Append one piece to the queue; return its end in nanoseconds and its bytes."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            bytes_per_ns = self._limits[rate]
            # With one piece of this size per sharer, a round of the queue takes PIECE_NS.
            served = min(left, bytes_per_ns * PIECE_NS / self._words[_SHARERS])
            end_ns = max(ready_ns, self._words[_BUSY_UNTIL_NS]) + round(served / bytes_per_ns)
            self._words[_BUSY_UNTIL_NS] = end_ns
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        return end_ns, served

    def _count_transfer(self, direction: Direction, size_bytes: int, accesses: int) -> None:
        bytes_place, accesses_place = _COUNTS[direction]
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            self._words[bytes_place] += size_bytes
            self._words[accesses_place] += accesses
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def make_drive(path: Path, limits: DriveLimits, sharers: int) -> Drive:
    """Create a drive's file and open it.

    Args:
        path: file to create, preferably in memory (on a tmpfs).
        limits: limits in real units.
        sharers: number of processes that will use the drive at the same time.
    """
    path.write_bytes(b"\0" * _WORDS * 8)
    drive = Drive(path)
    drive._words[_SHARERS] = max(1, sharers)  # noqa: SLF001 - this module's own
    drive.set_limits(limits)
    return drive


def _bytes_per_ns(mb_per_s: float | None) -> float:
    return math.inf if mb_per_s is None else mb_per_s * 1e-3
