"""Trace format that `laggard analyze` reads."""

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
        description: description of the input, for messages.
        matches: function that returns True if a file or folder has this format, by names only.
        read: function that reads the run; it imports heavy modules itself.
    """

    name: str
    description: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], RunData]
