"""Where every rank is, in a file that costs the ranks a few stores in memory, and who of them
hangs.

The file holds 32 bytes per rank: step, phase, CLOCK_MONOTONIC nanoseconds, process id, each a
little-endian i64.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from laggard.core.span_schema import Phase

BEAT = struct.Struct("<qqqq")
PHASES = tuple(Phase)
WAITING_PHASES = (Phase.COMM, Phase.EVALUATE)


@dataclass(frozen=True)
class Beat:
    """A rank's last sign of life; `time_ns` 0 means none yet."""

    rank: int
    step: int
    phase: Phase
    time_ns: int
    pid: int


def map_file(path: Path, size: int) -> mmap.mmap:
    """Shared memory of `size` bytes backed by a file, which the first to come fills with zeros."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


class Heartbeat:
    """A rank's own place in the file."""

    def __init__(self, path: Path, rank: int, world_size: int) -> None:
        self._memory = map_file(path, world_size * BEAT.size)
        self._offset = rank * BEAT.size
        self._pid = os.getpid()

    def beat(self, step: int, phase_code: int, now_ns: int) -> None:
        """Say that this rank enters a phase of a step."""
        BEAT.pack_into(self._memory, self._offset, step, phase_code, now_ns, self._pid)

    def close(self) -> None:
        """Leave the file to its readers."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_heartbeats(path: Path, world_size: int) -> tuple[Beat, ...]:
    """The last beat of every rank; of those that have not begun, one with `time_ns` 0."""
    content = path.read_bytes() if path.exists() else b""
    content = content.ljust(world_size * BEAT.size, b"\0")
    beats = (BEAT.unpack_from(content, rank * BEAT.size) for rank in range(world_size))
    return tuple(
        Beat(rank, step, PHASES[phase], time_ns, pid)
        for rank, (step, phase, time_ns, pid) in enumerate(beats)
    )


def suspects(beats: Sequence[Beat], now_ns: int, patience_s: float) -> tuple[int, ...]:
    """The ranks that hold up the others.

    While any rank moves, the training does, and nobody is suspected. When all have been still for
    longer than `patience_s`, those that are not waiting for others are to blame; when all wait,
    those that are furthest behind.

    Args:
        beats: of every rank.
        now_ns: CLOCK_MONOTONIC.
        patience_s: real seconds that the slowest phase may take.
    """
    begun = [beat for beat in beats if beat.time_ns]
    if not begun or any(now_ns - beat.time_ns <= patience_s * 1e9 for beat in begun):
        return ()
    busy = tuple(beat.rank for beat in begun if beat.phase not in WAITING_PHASES)
    if busy:
        return busy
    behind = min(beat.step for beat in begun)
    return tuple(beat.rank for beat in begun if beat.step == behind)
