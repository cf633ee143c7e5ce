"""What hosts owed, computed and lost, in memory that the limiters share with their caller: reading
it costs them nothing.
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
    """How a host has computed so far, in real nanoseconds.

    Attributes:
        due_ns: wall time that its computing should have taken at its share.
        lost_ns: wall time for which it was kept from its core, beyond what it could make up for.
        owed_ns: wall time for which it is still to be held back.
    """

    due_ns: int = 0
    lost_ns: int = 0
    owed_ns: int = 0


class HostCounters:
    """The numbers of one host, written by its limiter."""

    __slots__ = ("_words",)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def add(self, due_ns: float, lost_ns: float, owed_ns: float) -> None:
        """Add what was due and lost since the last call, and put down what is owed now."""
        words = self._words
        words[_DUE_NS] += int(due_ns)
        words[_LOST_NS] += int(lost_ns)
        words[_OWED_NS] = int(owed_ns)

    def read(self) -> HostUse:
        """What stands there now."""
        return HostUse(self._words[_DUE_NS], self._words[_LOST_NS], self._words[_OWED_NS])


def host_tallies(hosts: Sequence[str]) -> dict[str, HostCounters]:
    """A tally for every host, in memory that a later fork shares."""
    view = memoryview(mmap.mmap(-1, max(len(hosts), 1) * _FIELDS * _WORD)).cast("B").cast("q")
    return {host: HostCounters(view[i * _FIELDS :][:_FIELDS]) for i, host in enumerate(hosts)}
