"""How far equal hosts differ: what a few of them say, and what many do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from laggard.analysis.detection.reference import MIN_SCATTER, fit_references
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.load_run import RankHost
from laggard.core.span_schema import Phase

STEPS = 40


@dataclass(frozen=True)
class SteadyWork:
    """Ranks whose passes take the same time in every step, [W] seconds."""

    seconds: FloatArray

    @property
    def samples(self) -> IntArray:
        return np.full((STEPS, len(self.seconds)), 32, dtype=np.int64)

    @property
    def counted(self) -> BoolArray:
        return np.ones((STEPS, len(self.seconds)), dtype=np.bool_)

    def of_rank(self, rank: int) -> FloatArray:
        spent = np.zeros((STEPS, len(Phase)))
        spent[:, Phase.FORWARD.code] = self.seconds[rank]
        return spent


def estimate_scatter(*seconds: float) -> float:
    hosts = tuple(
        RankHost(rank, f"edge.trainer.1.{rank + 1}", "", "edge", "", 1.0, 0, 0)
        for rank in range(len(seconds))
    )
    return fit_references(SteadyWork(np.array(seconds)), hosts).scatter


def test_two_equal_hosts_that_differ_do_not_hide_a_slow_third() -> None:
    # A deviation of 10 % alone would be a standard deviation of 22 %, and 1.65x nothing unusual.
    scatter = estimate_scatter(1.0, 1.1, 1.65)
    assert MIN_SCATTER < scatter < np.log(1.65) / 4


def test_a_single_other_host_says_nothing_of_the_scatter() -> None:
    assert estimate_scatter(1.0, 1.65) == MIN_SCATTER


@pytest.mark.parametrize("spread", [0.1, 0.2])
def test_many_hosts_say_how_far_they_differ(spread: float) -> None:
    drawn = np.exp(np.random.default_rng(5).normal(0.0, spread, 200))
    assert estimate_scatter(*drawn) == pytest.approx(spread, rel=0.25)
    assert estimate_scatter(*np.exp(np.zeros(200))) == MIN_SCATTER
