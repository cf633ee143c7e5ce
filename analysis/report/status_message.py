"""A short statement and whether it is good news."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["good", "bad", "care"]


@dataclass(frozen=True)
class StatusMessage:
    """What is said, and the colour that goes with it (never the colour alone)."""

    text: str
    tone: Tone
