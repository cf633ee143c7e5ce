"""Time dilation: a continuum that asks for more than the machine has runs D times slower, and is
reported undilated.

The real side is what clocks, links and CPU quotas of this machine see; the virtual side is what the
scenario asked for and what every record says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Dilation:
    """The factor D >= 1 between real and virtual time."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.factor < math.inf:
            raise ValueError(
                f"dilation {self.factor}: a continuum can be slowed down, not sped up; use 1 or"
                " more"
            )

    def real_ms(self, virtual_ms: float) -> float:
        """Real duration of a virtual delay."""
        return virtual_ms * self.factor

    def real_s(self, virtual_s: float) -> float:
        """Real duration of a virtual one, in seconds."""
        return virtual_s * self.factor

    def real_mbps(self, virtual_mbps: float) -> float:
        """Real rate of a virtual one."""
        return virtual_mbps / self.factor

    def real_share(self, virtual_share: float) -> float:
        """Real CPU share of a virtual one."""
        return virtual_share / self.factor

    def virtual_ns(self, real_ns: int) -> int:
        """Virtual duration of a real one, in nanoseconds."""
        return round(real_ns / self.factor)

    def virtual_s(self, real_s: float) -> float:
        """Virtual duration of a real one, in seconds."""
        return real_s / self.factor
