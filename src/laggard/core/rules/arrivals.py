"""Arrival of samples at a worker: evenly, in bursts, or both; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ArrivalRule:
    """Pace at which samples arrive.

    Attributes:
        rate_per_s: samples per second that arrive evenly; 0 for none.
        burst: samples that arrive at once, first at the beginning; 0 for none.
        every_s: seconds between two bursts; None without bursts.
    """

    rate_per_s: float
    burst: int = 0
    every_s: float | None = None

    def count(self, elapsed_s: float) -> float:
        """Return the number of samples that have arrived after some seconds."""
        bursts = 0 if self.every_s is None else math.floor(elapsed_s / self.every_s) + 1
        return self.rate_per_s * elapsed_s + self.burst * bursts

    def find_time_s(self, samples: int) -> float:
        """Return the seconds after which so many samples have arrived.

        Examples:
            >>> ArrivalRule(10.0).find_time_s(25)
            2.5
            >>> ArrivalRule(0.0, burst=20, every_s=5.0).find_time_s(21)
            5.0
        """
        if self.every_s is None:
            return samples / self.rate_per_s
        each_period = self.rate_per_s * self.every_s + self.burst
        periods = max(0, math.ceil(samples / each_period) - 1)
        missing = samples - (periods + 1) * self.burst - self.rate_per_s * periods * self.every_s
        if missing <= 0:
            return periods * self.every_s
        # Rounding can leave a part of a sample to a period in which nothing arrives evenly.
        even_s = missing / self.rate_per_s if self.rate_per_s else self.every_s
        return periods * self.every_s + min(even_s, self.every_s)
