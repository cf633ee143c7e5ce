"""Ranks that a run's trace shows to be slower than its first rank, without an analysis."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

CLEARLY_SLOWER = 1.75
"""Ratio of the medians of two ranks. Of ranks with half of the first rank's share, it leaves out
those beside which other programs slowed the first rank down, too."""
NEARLY_ALL = 0.95
"""Part of a rank's steps that must be slow. A deterministic cause covers nine steps in ten, and the
edge of an interval is known to a few steps."""
SLOWER = 1.3
"""Ratio of such a step to the first rank's median."""


def measure_slowness(folder: Path) -> dict[int, tuple[float, float]]:
    """Return by rank how many times as long as those of rank 0 its steps compute.

    The first value is the median, the second the ratio that `NEARLY_ALL` steps exceed.
    """
    spans = pq.read_table(folder / "spans.parquet").to_pandas()
    computing = spans[spans.phase.isin(["forward", "backward", "optimizer"])]
    step_s = computing.groupby(["rank", "step"]).dur_ns.sum()
    return {
        int(rank): _round_ratios(durations_s / step_s[0].median())
        for rank, durations_s in step_s.groupby("rank")
    }


def _round_ratios(ratios: pd.Series[float]) -> tuple[float, float]:
    return round(ratios.median(), 3), round(ratios.quantile(1 - NEARLY_ALL), 3)


def find_clearly_slower(folder: Path) -> set[int]:
    """Return the ranks that are `CLEARLY_SLOWER` than rank 0, in nearly all of their steps."""
    return {
        rank
        for rank, (median, least) in measure_slowness(folder).items()
        if median > CLEARLY_SLOWER and least > SLOWER
    }
