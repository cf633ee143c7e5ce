"""Processor time of messages, of parts of an all-reduce, and of a server's updates."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.core.cost_model.limited_core import expected_efficiency


@dataclass(frozen=True)
class MessageHandling:
    """Processor time on a whole core.

    The defaults are those of the machine of docs/what_if.md. There the two sides of a message took
    0.94 and 0.76 ms per megabyte for 0.56 MB, and 0.87 and 0.88 ms for 5.4 MB. An update with one
    to eight gradients took 0.31 to 0.58 ms per megabyte.

    Attributes:
        packing_s_per_mb: seconds per megabyte at the sender, and again at the receiver. A message
            is encrypted, written, read, and decrypted (ZeroMQ with CURVE).
        applying_s_per_mb: seconds of a server's SGD step per megabyte of the model.
        fixed_s: further seconds of every message, at the sender and again at the receiver.
        ring_part_s: seconds of every part of a ring all-reduce at a host, which sends one part and
            receives another.
        cold_caches: whether hosts with a share of a core handle messages with cold caches. A share
            is a speed for the steps of workers only. Parts of a ring are measured with cold ones.

    Examples:
        >>> MessageHandling(packing_s_per_mb=1e-3).message_s(megabytes=10.0, share=0.1)
        0.1
    """

    packing_s_per_mb: float = 0.9e-3
    applying_s_per_mb: float = 0.4e-3
    fixed_s: float = 0.0
    ring_part_s: float = 0.0
    cold_caches: bool = False

    def message_s(self, megabytes: float, share: float) -> float:
        """Return the seconds of one side of a message, on a share of a core."""
        return (self.fixed_s + self.packing_s_per_mb * megabytes) / self._speed(share)

    def update_s(self, megabytes: float, share: float) -> float:
        """Return the seconds of a server's update, on a share of a core."""
        return self.applying_s_per_mb * megabytes / self._speed(share)

    def _speed(self, share: float) -> float:
        """Return the speed of this work, relative to a whole core."""
        return share * expected_efficiency(min(share, 1.0)) if self.cold_caches else share


DEFAULT_HANDLING = MessageHandling()
