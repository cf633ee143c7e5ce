"""Heartbeat file: every rank's current phase, at the cost of a few memory writes per phase.

The file holds 32 bytes per rank: step, phase, CLOCK_MONOTONIC ns and process id, each a
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
    """Last sign of life of a rank; a `time_ns` of 0 means that there is none yet."""

    rank: int
    step: int
    phase: Phase
    time_ns: int
    pid: int


def map_file(path: Path, size: int) -> mmap.mmap:
    """Map a file of at least `size` bytes as shared memory; a new file contains zeros."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


class Heartbeat:
    """Writer of one rank's place in the heartbeat file."""

    def __init__(self, path: Path, rank: int, world_size: int) -> None:
        self._memory = map_file(path, world_size * BEAT.size)
        self._offset = rank * BEAT.size
        self._pid = os.getpid()

    def beat(self, step: int, phase_code: int, now_ns: int) -> None:
        """Record that this rank enters a phase of a step."""
        BEAT.pack_into(self._memory, self._offset, step, phase_code, now_ns, self._pid)

    def close(self) -> None:
        """Unmap the file; readers may continue to read it."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_heartbeats(path: Path, world_size: int) -> tuple[Beat, ...]:
    """Return the last beat of every rank; `time_ns` is 0 for ranks that have not begun."""
    content = path.read_bytes() if path.exists() else b""
    content = content.ljust(world_size * BEAT.size, b"\0")
    beats = (BEAT.unpack_from(content, rank * BEAT.size) for rank in range(world_size))
    return tuple(
        Beat(rank, step, PHASES[phase], time_ns, pid)
        for rank, (step, phase, time_ns, pid) in enumerate(beats)
    )


def suspects(beats: Sequence[Beat], now_ns: int, patience_s: float) -> tuple[int, ...]:
    """Return the ranks that block the others.

    While any rank enters phases, the training moves and no rank is suspected. If all have stayed
    in their phases for longer than `patience_s`, the ranks that do not wait for others are to
    blame. If all wait, the ranks in the lowest step are.

    Args:
        beats: last beat of every rank.
        now_ns: current time, CLOCK_MONOTONIC.
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


def count_begun_steps(path: Path, world_size: int, rank: int) -> int:
    """Return the number of steps that earlier processes of a rank have begun.

    The rank does not train on their samples again, since it may have trained on them already.
    """
    last = read_heartbeats(path, world_size)[rank]
    return last.step + 1 if last.time_ns else 0
