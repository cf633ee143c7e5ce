"""Counters and lateness of the emulator, in memory that it shares with its caller.

Reading them costs the emulator nothing.
"""

from __future__ import annotations

import mmap

from laggard.network_emulation.links.userspace.queueing import TALLY_FIELDS

UNROUTED, UNKNOWN, UNDELIVERED, WORST_LATE_NS = 0, 1, 2, 3
_GAUGES = 4
_BUCKETS = 40
_WORD = 8


class EmulatorCounters:
    """Shared 64-bit counters: created before the fork, written by the emulator, read by both.

    Attributes:
        counts: `TALLY_FIELDS` counters per route.
        gauges: frames to unknown hosts, frames that are neither IPv4 nor IPv6, frames that a
            device refused, and the worst lateness in ns.
        lateness: packets by the bit length of their lateness in ns.
    """

    def __init__(self, routes: int) -> None:
        words = routes * TALLY_FIELDS + _GAUGES + _BUCKETS
        view = memoryview(mmap.mmap(-1, words * _WORD)).cast("Q")
        self.counts = view[: routes * TALLY_FIELDS]
        self.gauges = view[routes * TALLY_FIELDS :][:_GAUGES]
        self.lateness = view[routes * TALLY_FIELDS + _GAUGES :]

    def note_late(self, late_ns: int) -> None:
        """Record that a packet left `late_ns` after it was due."""
        self.lateness[min(late_ns.bit_length(), _BUCKETS - 1)] += 1
        self.gauges[WORST_LATE_NS] = max(self.gauges[WORST_LATE_NS], late_ns)

    def late_ns(self, quantile: float) -> float | None:
        """Return a quantile of the lateness in ns; None before the first packet.

        The value is an upper bound within a factor of two.
        """
        return quantile_of(list(self.lateness), quantile)


def quantile_of(counts: list[int], quantile: float) -> float | None:
    """Return the upper edge of the power-of-two bucket of a quantile; None without counts."""
    total = sum(counts)
    seen = 0
    for bits, count in enumerate(counts):
        seen += count
        if count and seen >= quantile * total:
            return float((1 << bits) - 1)
    return None
