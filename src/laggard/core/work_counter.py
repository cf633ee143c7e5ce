"""Counter of a worker's finished work and of the CPU time that it took.

The worker writes it, and the process that limits the worker to its share reads it. The same step
takes more CPU time when caches are cold or when the work of others evicts them. If only CPU time
counted, a host with cold caches would fall behind its share. Therefore a limiter charges the CPU
time that the work takes at full speed.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_WORDS = 4
_STEPS, _FULL_SPEED_NS, _CPU_NS, _IS_COMPUTING = range(_WORDS)


@dataclass(frozen=True)
class WorkDone:
    """Work of a worker so far.

    Attributes:
        steps: number of finished steps.
        full_speed_ns: CPU time that the computing of these steps takes at full speed.
        cpu_ns: CPU time that it really took.
    """

    steps: int = 0
    full_speed_ns: int = 0
    cpu_ns: int = 0


class WorkCounter:
    """Work count of one worker, mapped from its file; the file is created if missing.

    Args:
        path: the file; one process adds to it, and any process may read it.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _WORDS * 8)
            self._memory = mmap.mmap(descriptor, _WORDS * 8)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._memory).cast("q")

    @property
    def steps(self) -> int:
        """Return the number of steps finished so far; reading it is cheap."""
        return self._words[_STEPS]

    @property
    def is_computing(self) -> bool:
        """Return whether the worker is computing now; reading it is cheap."""
        return bool(self._words[_IS_COMPUTING])

    def set_computing(self, is_computing: bool) -> None:
        """Record that the worker begins or stops computing."""
        self._words[_IS_COMPUTING] = is_computing

    def add(self, full_speed_ns: int, cpu_ns: int) -> None:
        """Add one finished step; the number of steps changes last."""
        words = self._words
        words[_FULL_SPEED_NS] += full_speed_ns
        words[_CPU_NS] += cpu_ns
        # Last, so that a reader that sees the new number of steps also sees their times.
        words[_STEPS] += 1

    def read(self) -> WorkDone:
        """Read the present counts."""
        return WorkDone(self._words[_STEPS], self._words[_FULL_SPEED_NS], self._words[_CPU_NS])

    def close(self) -> None:
        """Unmap the file."""
        self._words.release()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def charge_start(path: Path) -> None:
    """Charge the start of a worker that joins against its share, as if it were computing.

    Only the CPU time of a computing worker is charged. The worker itself resets this when it has
    joined.

    Args:
        path: file of the worker's counter, which is created.
    """
    with WorkCounter(path) as counter:
        counter.set_computing(True)
