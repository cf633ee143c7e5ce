"""Ranks that a run's trace shows to be slower than its first rank, without an analysis."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

CLEARLY_SLOWER = 1.75
"""Ratio of the medians of two ranks. Of ranks with half of the first rank's share, it leaves out
those beside which other programs slowed the first rank down, too."""


def measure_slowness(folder: Path) -> dict[int, float]:
    """Return how many times as long as those of rank 0 each rank's steps compute, by medians."""
    spans = pq.read_table(folder / "spans.parquet").to_pandas()
    computing = spans[spans.phase.isin(["forward", "backward", "optimizer"])]
    step_s = computing.groupby(["rank", "step"]).dur_ns.sum().groupby("rank").median()
    return {int(rank): round(float(step_s[rank] / step_s[0]), 3) for rank in step_s.index}


def find_clearly_slower(folder: Path) -> set[int]:
    """Return the ranks whose steps compute `CLEARLY_SLOWER` times as long as those of rank 0."""
    return {
        rank for rank, slowness in measure_slowness(folder).items() if slowness > CLEARLY_SLOWER
    }
