"""Displays of a campaign: a line per cell, a moving line on a terminal, and JSON for machines."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

from laggard.campaign.campaign_state import Row, Scalar
from laggard.campaign.cells import Cell
from laggard.campaign.progress import CampaignProgress, format_duration
from laggard.core.errors import escape_unprintable
from laggard.core.text.terminal_output import print_text

_MAX_WIDTH = 200


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@dataclass
class CampaignTextDisplay:
    """Display for people: one line per cell that ended, on standard output."""

    started_s: float = 0.0
    current: str = ""
    on_terminal: bool = field(default_factory=_is_terminal)

    def show_start(self, progress: CampaignProgress) -> None:
        """Show that everything was checked, and what is left to do."""
        print_text(f"all setups are valid: {progress.to_text()}")

    def show_cell(self, cell: Cell, progress: CampaignProgress) -> None:
        """Show that a cell starts."""
        self.started_s = time.monotonic()
        number = progress.done + progress.failed + 1
        self.current = f"cell {number} of {progress.cells}: {name_cell(cell)}"

    def tick(self) -> None:
        """Show how long the current cell has been running."""
        if self.on_terminal:
            passed = format_duration(time.monotonic() - self.started_s)
            _write(f"\r\x1b[K{escape_unprintable(self.current)} · {passed}"[:_MAX_WIDTH])

    def show_row(self, cell: Cell, row: Row, progress: CampaignProgress) -> None:
        """Show that a cell has ended."""
        if self.on_terminal:
            _write("\r\x1b[K")
        print_text(f"{format_cell(cell, row)} · {progress.to_text()}")


@dataclass
class CampaignJsonDisplay:
    """Display for machines: one JSON object per line."""

    def show_start(self, progress: CampaignProgress) -> None:
        """Write the counts."""
        print_text(json.dumps({"event": "start", **vars(progress)}))

    def show_cell(self, cell: Cell, progress: CampaignProgress) -> None:
        """Write that a cell starts."""
        event = {"event": "cell", "cell": cell.digest, "name": name_cell(cell)}
        print_text(json.dumps({**event, **vars(progress)}))

    def tick(self) -> None:
        """Write nothing."""

    def show_row(self, cell: Cell, row: Row, progress: CampaignProgress) -> None:
        """Write the row of a cell that has ended, and the counts."""
        counts = vars(progress)
        print_text(json.dumps({"event": "row", "cell": cell.digest, "row": row, **counts}))


def _write(text: str) -> None:
    """Move the line on the terminal; a terminal that was closed ends no campaign."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _format(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def name_cell(cell: Cell) -> str:
    """Return a cell's scenario, variant, repeat, and values of axes with several as text."""
    named = [cell.setup.scenario.name, *([cell.setup.variant] if cell.setup.variant else [])]
    values = [
        f"{key}={json.dumps(value)}"
        for key, value in cell.setup.varied.items()
        if key in cell.setup.telling
    ]
    return " · ".join([*named, *values, f"repeat {cell.repeat}"])


def format_cell(cell: Cell, row: Row) -> str:
    """Format a cell that has ended as a line."""
    parts = [name_cell(cell), str(row["status"])]
    if row.get("status") != "done" and row.get("reason"):
        # The first line of a long reason announces the list that follows.
        lines = str(row["reason"]).splitlines()[:2]
        parts.append(" ".join(line.strip() for line in lines))
    parts += [
        f"{name} {_format(row[name])}"
        for name in ("makespan_s", "accuracy", "stragglers")
        if row.get(name) is not None
    ]
    return " · ".join([*parts, *([str(row["folder"])] if row.get("folder") else [])])
