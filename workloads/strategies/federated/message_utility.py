"""Utility of a client as an integer of a message, which has no other numbers."""

from __future__ import annotations

import math

UNIT = 1e-6
MOST = 2**62
NONE = -1
"""Stands for a utility that is infinite or NaN."""


def to_message_utility(utility: float) -> int:
    """Return a utility as an integer of a message; `NONE` if it is infinite or NaN."""
    return min(round(utility / UNIT), MOST) if math.isfinite(utility) else NONE


def from_message_utility(value: int) -> float:
    """Return the utility that a message has as an integer; NaN for `NONE`."""
    return value * UNIT if value >= 0 else math.nan
