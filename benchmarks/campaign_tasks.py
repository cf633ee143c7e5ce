"""Campaign of 200 `evaluate` cells: two worker processes against one, and one process killed.

    python benchmarks/campaign_tasks.py [CELLS [ROUNDS]]

It prints the real seconds of each campaign from its start to its table, and those of the cells
without the start of the processes. Numbers of processes take turns.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from laggard.campaign.campaign_state import Row
from laggard.campaign.cells import Cell
from laggard.campaign.progress import CampaignProgress
from laggard.campaign.run_campaign import CampaignOptions, run_campaign
from laggard.campaign.tasks.pools import LocalPool

CELLS = 200
ROUNDS = 1


@dataclass
class TimingDisplay:
    """Display that notes when cells end, and kills a process after half of them.

    Attributes:
        kill_after: number of cells after which a process is killed; 0 for never.
        ended: time at which each cell ended, and its digest.
    """

    kill_after: int
    ended: list[tuple[float, str]] = field(default_factory=list)

    def show_start(self, progress: CampaignProgress) -> None:
        """Show nothing."""

    def show_cell(self, cell: Cell, progress: CampaignProgress) -> None:
        """Show nothing."""

    def tick(self) -> None:
        """Show nothing."""

    def show_row(self, cell: Cell, row: Row, progress: CampaignProgress) -> None:  # noqa: ARG002
        """Note the time, and kill a process if it is time."""
        self.ended.append((time.monotonic(), cell.digest))
        if len(self.ended) == self.kill_after:
            os.kill(find_worker().pid, signal.SIGKILL)


def find_worker() -> psutil.Process:
    """Return a process that computes cells."""
    return next(
        each
        for each in psutil.Process().children(recursive=True)
        if any("spawn_main" in word for word in each.cmdline())
    )


def run(cells: int, processes: int, *, kill: bool = False) -> tuple[float, float, int, int]:
    """Run the campaign.

    Returns:
        Real seconds, seconds between the first and the last cell, cells lost, and cells repeated.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "many.yaml"
        file.write_text(f"command: evaluate\nvary: {{case: [0-{cells - 1}]}}\n")
        display = TimingDisplay(cells // 2 if kill else 0)
        options = CampaignOptions(Path(folder) / "runs", choose_pool=lambda: LocalPool(processes))
        began_s = time.monotonic()
        result = run_campaign(file, options, display)
        took_s = time.monotonic() - began_s
    between_s = display.ended[-1][0] - display.ended[0][0]
    digests = [digest for _, digest in display.ended]
    return took_s, between_s, cells - result.progress.done, len(digests) - len(set(digests))


def main() -> None:
    """Print the table."""
    cells, rounds = (
        int(sys.argv[place]) if len(sys.argv) > place else usual
        for place, usual in ((1, CELLS), (2, ROUNDS))
    )
    print(f"{cells} cells, load {os.getloadavg()[0]:.1f} before\n")
    print("| processes | campaign | cells alone | lost | repeated |\n|---|---|---|---|---|")
    took: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for _ in range(rounds):
        for processes, series in took.items():
            took_s, between_s, lost, repeated = run(cells, processes)
            series.append((took_s, between_s))
            print(
                f"| {processes} | {took_s:.1f} s | {between_s:.1f} s | {lost} | {repeated} |",
                flush=True,
            )
    took_s, between_s, lost, repeated = run(cells, 2, kill=True)
    print(f"| 2, one killed | {took_s:.1f} s | {between_s:.1f} s | {lost} | {repeated} |\n")
    for place, name in enumerate(("campaign", "cells alone")):
        one, two = (statistics.median(each[place] for each in series) for series in took.values())
        print(f"speed-up of the {name} with two processes (medians of {rounds}): {one / two:.2f}")


if __name__ == "__main__":
    main()
