"""Pulse of a limiter: a witness that the machine was not suspended.

A limiter has real-time priority and wakes up many times a second. If it was on time, the machine
was running, however late a thread of ordinary priority was.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

LATE_NS = 100_000_000
"""Lateness of a wake-up from which it counts."""

_STALLED_NS, _BEAT_NS = 0, 1
_FIELDS = 2
_WORD = 8


@dataclass(frozen=True)
class Pulse:
    """State of a limiter at one moment.

    Attributes:
        beat_ns: CLOCK_MONOTONIC of its last wake-up.
        stalled_ns: sum of the lateness of all wake-ups that were much too late, in ns.
    """

    beat_ns: int
    stalled_ns: int


class PulseCounter:
    """Pulse in memory that the limiter, a later fork, shares with its caller."""

    __slots__ = ("_words",)

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, _FIELDS * _WORD)).cast("B").cast("q")

    def beat(self, now_ns: int, late_ns: int) -> None:
        """Note a wake-up.

        Args:
            now_ns: CLOCK_MONOTONIC.
            late_ns: its lateness in ns; negative if it was early.
        """
        self._words[_BEAT_NS] = now_ns
        if late_ns > LATE_NS:
            self._words[_STALLED_NS] += late_ns

    def read(self) -> Pulse:
        """Return the current state."""
        return Pulse(self._words[_BEAT_NS], self._words[_STALLED_NS])
