"""The last lines of a process's log."""

from __future__ import annotations

from pathlib import Path

TAIL_LINES = 25
_TAIL_BYTES = 16384


def read_log_tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, or an empty text if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
