"""Progress of a campaign: counts, and the remaining time from measured durations. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from laggard.campaign.campaign_state import STARTED, Attempt
from laggard.campaign.cells import Cell


@dataclass(frozen=True)
class CampaignProgress:
    """State of a campaign between two cells.

    Attributes:
        cells: number of cells.
        done: number of cells that are done.
        failed: number of cells whose attempts all ended otherwise.
        remaining_s: expected real seconds of the other cells; None before a cell has ended.
    """

    cells: int
    done: int
    failed: int
    remaining_s: float | None

    def to_text(self) -> str:
        """Format the counts and the remaining time."""
        parts = [f"{self.done} of {self.cells} cells done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.remaining_s is not None and self.done + self.failed < self.cells:
            parts.append(f"about {format_duration(self.remaining_s)} left")
        return ", ".join(parts)


def measure_progress(
    cells: Sequence[Cell], attempts: Sequence[Attempt], skipped: Collection[str] = ()
) -> CampaignProgress:
    """Return the progress of a campaign.

    Args:
        cells: its present cells.
        attempts: attempts so far.
        skipped: digests of cells that need not be run.
    """
    ended = {each.digest for each in attempts if each.status != STARTED}
    done = {each.digest for each in attempts if each.status == "done"}
    durations = _list_durations(attempts)
    by_setup = {cell.setup_digest: durations.get(cell.digest, []) for cell in cells}
    for cell in cells:
        by_setup[cell.setup_digest] = by_setup[cell.setup_digest] + durations.get(cell.digest, [])
    everything = [value for values in durations.values() for value in values]
    left = [c for c in cells if c.digest not in ended and c.digest not in skipped]
    remaining_s = None
    if everything:
        usual_s = statistics.median(everything)
        remaining_s = sum(
            statistics.median(by_setup[cell.setup_digest] or [usual_s]) for cell in left
        )
    digests = {cell.digest for cell in cells}
    return CampaignProgress(
        len(cells), len(digests & done), len(digests & (ended - done)), remaining_s
    )


def format_duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds, such as `1:02:03` or `0:45`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _list_durations(attempts: Sequence[Attempt]) -> Mapping[str, list[float]]:
    durations: dict[str, list[float]] = {}
    for each in attempts:
        elapsed_s = each.row.get("elapsed_s")
        if each.status == "done" and isinstance(elapsed_s, int | float):
            durations.setdefault(each.digest, []).append(float(elapsed_s))
    return durations
