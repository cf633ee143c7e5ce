"""Display of the short runs that tell the stalls, on standard error."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.campaign.campaign_state import Row
from laggard.campaign.cells import Cell
from laggard.campaign.progress import CampaignProgress
from laggard.core.text.terminal_output import print_text


@dataclass
class StallDisplay:
    """Display of one line per run that ended."""

    def show_start(self, progress: CampaignProgress) -> None:
        """Show how many runs there are."""
        done = f", {progress.done} of them made before" if progress.done else ""
        print_text(f"{progress.cells} short runs{done}", err=True)

    def show_cell(self, cell: Cell, progress: CampaignProgress) -> None:
        """Show nothing."""

    def tick(self) -> None:
        """Show nothing."""

    def show_row(self, cell: Cell, row: Row, progress: CampaignProgress) -> None:
        """Show that a run has ended."""
        reason = f": {row['reason']}" if row.get("reason") else ""
        elapsed_s = row.get("elapsed_s")
        took = f" in {elapsed_s:.0f} s" if isinstance(elapsed_s, float) else ""
        print_text(
            f"run {progress.done + progress.failed} of {progress.cells}: {cell.setup.variant},"
            f" {row['status']}{took}{reason}",
            err=True,
        )
