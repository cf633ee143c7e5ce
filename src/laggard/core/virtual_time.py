"""Time dilation: a continuum that needs more CPU time than the machine has runs D times slower.

Results are converted back to virtual time. Real values are those of this machine's clocks, links
and CPU quotas. Virtual values are those of the scenario and of every record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Dilation:
    """Factor D >= 1 between real and virtual time."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.factor < math.inf:
            raise ValueError(
                f"dilation {self.factor}: the factor must be at least 1, because an emulation can"
                " be slowed down but not sped up"
            )

    def real_ms(self, virtual_ms: float) -> float:
        """Convert a virtual delay to real milliseconds."""
        return virtual_ms * self.factor

    def real_s(self, virtual_s: float) -> float:
        """Convert a virtual duration to real seconds."""
        return virtual_s * self.factor

    def real_mbps(self, virtual_mbps: float) -> float:
        """Convert a virtual rate to a real rate."""
        return virtual_mbps / self.factor

    def real_share(self, virtual_share: float) -> float:
        """Convert a virtual CPU share to a real share."""
        return virtual_share / self.factor

    def virtual_ns(self, real_ns: int) -> int:
        """Convert a real duration to virtual nanoseconds."""
        return round(real_ns / self.factor)

    def virtual_s(self, real_s: float) -> float:
        """Convert a real duration to virtual seconds."""
        return real_s / self.factor
