"""One trace format that `laggard analyze` reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from laggard.analysis.tables.load_run import RunData


@dataclass(frozen=True)
class TraceFormat:
    """One trace format.

    Attributes:
        name: short name, as in `origin` of `run.json`.
        description: what to give, for messages.
        matches: whether a file or folder has this format, judged by names alone.
        read: reads the run; imports what is heavy itself.
    """

    name: str
    description: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], RunData]
