"""Counters and lateness of the emulator, in memory that it shares with its caller: reading them
costs it nothing.
"""

from __future__ import annotations

import mmap

from laggard.network_emulation.links.userspace.queueing import TALLY_FIELDS

UNROUTED, UNKNOWN, UNDELIVERED, WORST_LATE_NS = 0, 1, 2, 3
_GAUGES = 4
_BUCKETS = 40
_WORD = 8


class EmulatorCounters:
    """Shared 64-bit counters; made before the fork, written by the emulator, read by both.

    Attributes:
        counts: `TALLY_FIELDS` per route.
        gauges: frames to no known host, frames that are neither IPv4 nor IPv6, frames that a device
            refused, and the worst lateness in ns.
        lateness: packets by the bit length of their lateness in ns.
    """

    def __init__(self, routes: int) -> None:
        words = routes * TALLY_FIELDS + _GAUGES + _BUCKETS
        view = memoryview(mmap.mmap(-1, words * _WORD)).cast("Q")
        self.counts = view[: routes * TALLY_FIELDS]
        self.gauges = view[routes * TALLY_FIELDS :][:_GAUGES]
        self.lateness = view[routes * TALLY_FIELDS + _GAUGES :]

    def note_late(self, late_ns: int) -> None:
        """Note that a packet left `late_ns` after it was due."""
        self.lateness[min(late_ns.bit_length(), _BUCKETS - 1)] += 1
        self.gauges[WORST_LATE_NS] = max(self.gauges[WORST_LATE_NS], late_ns)

    def late_ns(self, quantile: float) -> float | None:
        """An upper bound, within a factor of two, of that quantile of the lateness; None before any
        packet.
        """
        return quantile_of(list(self.lateness), quantile)


def quantile_of(counts: list[int], quantile: float) -> float | None:
    """Upper edge of the power-of-two bucket that holds a quantile; None for no counts."""
    total = sum(counts)
    seen = 0
    for bits, count in enumerate(counts):
        seen += count
        if count and seen >= quantile * total:
            return float((1 << bits) - 1)
    return None
