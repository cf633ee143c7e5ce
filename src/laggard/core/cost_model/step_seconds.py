"""Seconds of a step with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from laggard.core.errors import InputError


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step.

    Attributes:
        low_s: lower end of the interval.
        usual_s: usual seconds.
        high_s: upper end of the interval; infinite if none is known.

    Raises:
        InputError: the numbers are not positive, or not in this order.
    """

    low_s: float
    usual_s: float
    high_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.low_s <= self.usual_s <= self.high_s or not (0 < self.usual_s < math.inf):
            raise InputError(
                f"a step of {self.usual_s:g} s ({self.low_s:g} to {self.high_s:g}) is impossible —"
                " measure it again"
            )

    def scaled(self, factor: float, extra_s: float = 0.0) -> StepSeconds:
        """Return the seconds times a factor, and some more that have no interval."""
        low_s, usual_s, high_s = (
            each * factor + extra_s for each in (self.low_s, self.usual_s, self.high_s)
        )
        return StepSeconds(low_s, usual_s, high_s)
