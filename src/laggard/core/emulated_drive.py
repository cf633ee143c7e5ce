"""A host's emulated drive: a queue in shared memory that whoever reads or writes there waits in.

A kernel's throttle sees neither the page cache nor arrays in memory, and is root's alone; so
readers and writers hold themselves to the drive's limits. It serves one transfer at a time, first
come first served, in pieces; that several processes take turns with their pieces is what shares it
fairly. When a piece ends is reckoned from when the one before it ended: whoever wakes late has lost
nothing by that. Of a latency, which accesses of several processes spend side by side, no part
occupies the queue.

The queue is locked with fcntl(2), so the lock of a process that is killed goes with it; limits are
changed without the lock.
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
"""Real time that the pieces of all processes of a host take at most, if each has one waiting: a
change of limits takes so long to act."""

_WORDS = 10
_LIMITS = {"read": (0, 2), "write": (1, 3)}
_SHARERS, _BUSY_UNTIL_NS = 4, 5
_COUNTS = {"read": (6, 7), "write": (8, 9)}


@dataclass(frozen=True)
class DriveLimits:
    """What a drive gives; real or virtual, as the context says.

    Attributes:
        read_mb_per_s: bandwidth of reading, 10^6 bytes a second; None is as fast as the machine.
        write_mb_per_s: bandwidth of writing.
        read_latency_ms: what every access to read takes besides.
        write_latency_ms: what every access to write takes besides.
    """

    read_mb_per_s: float | None = None
    write_mb_per_s: float | None = None
    read_latency_ms: float = 0.0
    write_latency_ms: float = 0.0


@dataclass(frozen=True)
class DriveCounters:
    """What a drive was asked for so far: bytes, and accesses."""

    read_bytes: int = 0
    read_accesses: int = 0
    write_bytes: int = 0
    write_accesses: int = 0


class Drive:
    """One host's drive, mapped from its file; threads of one process need a `Drive` of their own
    each, and a lock between them.

    Args:
        path: its file, as `make_drive` made it.
        clock: nanoseconds of the clock that the drive's queue is kept in, the same for all who
            share it.
        sleep: waits so many seconds of that clock.
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
        """Change the limits, also of transfers under way.

        Returns:
            CLOCK_MONOTONIC nanoseconds when the last piece that the old ones hold for has been
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
        """Wait as long as the drive takes.

        Args:
            direction: read or write.
            size_bytes: what is transferred.
            accesses: how many times the latency is due, one after the other.
            begun_ns: CLOCK_MONOTONIC nanoseconds since when it is being waited for; now where
                absent.
            on_wait: called again and again while waiting.
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
        """What it was asked for so far."""
        return DriveCounters(
            *(self._words[i] for direction in ("read", "write") for i in _COUNTS[direction])
        )

    def reset_counters(self) -> None:
        """Count from zero again."""
        for places in _COUNTS.values():
            for place in places:
                self._words[place] = 0

    def close(self) -> None:
        """Leave the drive to the others."""
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
        """Spend the latency of some accesses, in parts as well, so that a change acts within an
        access too.
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
        """Join the queue with one piece; returns when it is served, and its bytes."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            bytes_per_ns = self._limits[rate]
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
    """Make a drive's file, in memory (a tmpfs) best.

    Args:
        path: where.
        limits: what it gives, in real units.
        sharers: processes that will use it at a time.
    """
    path.write_bytes(b"\0" * _WORDS * 8)
    drive = Drive(path)
    drive._words[_SHARERS] = max(1, sharers)  # noqa: SLF001 - this module's own
    drive.set_limits(limits)
    return drive


def _bytes_per_ns(mb_per_s: float | None) -> float:
    return math.inf if mb_per_s is None else mb_per_s * 1e-3
