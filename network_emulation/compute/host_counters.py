"""Counters of due, lost and owed time per host, in memory shared by the limiters and their caller.

Reading them costs the limiters nothing.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

_DUE_NS, _LOST_NS, _OWED_NS = 0, 1, 2
_FIELDS = 3
_WORD = 8


@dataclass(frozen=True)
class HostUse:
    """Computing time of a host so far, in real nanoseconds.

    Attributes:
        due_ns: wall time that its computing should have taken at its share.
        lost_ns: wall time for which it was kept from its core, beyond the part it could make up
            for.
        owed_ns: wall time for which it must still be held back.
    """

    due_ns: int = 0
    lost_ns: int = 0
    owed_ns: int = 0


class HostCounters:
    """Counters of one host, written by its limiter."""

    __slots__ = ("_words",)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def add(self, due_ns: float, lost_ns: float, owed_ns: float) -> None:
        """Add the due and lost time since the last call, and store the time owed now."""
        words = self._words
        words[_DUE_NS] += int(due_ns)
        words[_LOST_NS] += int(lost_ns)
        words[_OWED_NS] = int(owed_ns)

    def read(self) -> HostUse:
        """Return the current values."""
        return HostUse(self._words[_DUE_NS], self._words[_LOST_NS], self._words[_OWED_NS])


def host_tallies(hosts: Sequence[str]) -> dict[str, HostCounters]:
    """Return counters for every host, in memory that later forks share."""
    view = memoryview(mmap.mmap(-1, max(len(hosts), 1) * _FIELDS * _WORD)).cast("B").cast("q")
    return {host: HostCounters(view[i * _FIELDS :][:_FIELDS]) for i, host in enumerate(hosts)}
