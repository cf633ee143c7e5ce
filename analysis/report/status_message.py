"""Short statement with a tone: good, bad, or care."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["good", "bad", "care"]


@dataclass(frozen=True)
class StatusMessage:
    """Statement, and the tone that determines its color.

    The text says everything that the color does.
    """

    text: str
    tone: Tone
