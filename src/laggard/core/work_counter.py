"""How much of its work a worker has done, beside the CPU time that this took: written by the
worker, read by who holds it to a share.

The same step takes more CPU time where caches have gone cold or somebody else's work takes them.
CPU time alone would let such a host fall behind its share; what counts is the CPU time that the
work takes at full speed.
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
    """A worker's work so far.

    Attributes:
        steps: that it has finished.
        full_speed_ns: CPU time that their computing would have taken at full speed.
        cpu_ns: CPU time that it took.
    """

    steps: int = 0
    full_speed_ns: int = 0
    cpu_ns: int = 0


class WorkCounter:
    """One worker's count, mapped from its file, which is made where it is missing.

    Args:
        path: the file; one process adds, any may read.
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
        """Steps finished so far; reading it is cheap."""
        return self._words[_STEPS]

    @property
    def is_computing(self) -> bool:
        """Whether the worker is computing now; reading it is cheap."""
        return bool(self._words[_IS_COMPUTING])

    def set_computing(self, is_computing: bool) -> None:
        """The worker begins to compute, or ceases to."""
        self._words[_IS_COMPUTING] = is_computing

    def add(self, full_speed_ns: int, cpu_ns: int) -> None:
        """One more step is finished; the number of steps changes last."""
        words = self._words
        words[_FULL_SPEED_NS] += full_speed_ns
        words[_CPU_NS] += cpu_ns
        words[_STEPS] += 1

    def read(self) -> WorkDone:
        """What stands there now."""
        return WorkDone(self._words[_STEPS], self._words[_FULL_SPEED_NS], self._words[_CPU_NS])

    def close(self) -> None:
        """Let go of the file."""
        self._words.release()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
