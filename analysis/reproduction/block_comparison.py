"""Comparison of one quantity of two runs by the means of blocks of steps, with its power.

Steps of one run are not independent, and a schedule of events makes some slower than others. So
both runs are cut into the same number of blocks, and the logarithms of the ratios of their means
are compared with zero (paired t test on batch means; Law and Kelton, "Simulation Modeling and
Analysis", section 9.5). The schedule cancels out, since both runs have it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laggard.analysis.estimates.estimate import compute_student_quantile
from laggard.analysis.tables.columns import FloatArray

BLOCKS = 10
"""Blocks that a run is cut into; with fewer than twice as many steps, there is one per two."""

POWER = 0.8
"""A difference is detectable if a test at the level of 5 % would find it with this probability."""


@dataclass(frozen=True)
class BlockComparison:
    """Difference of the means of two runs.

    Attributes:
        ratio: mean of the second run divided by that of the first.
        low: lower end of the 95 % interval of `ratio`.
        high: upper end of this interval.
        detectable: least relative difference that would be found with a probability of 80 %.
        blocks: number of blocks, or of pairs of runs.
    """

    ratio: float
    low: float
    high: float
    detectable: float
    blocks: int


def compare_blocks(first: FloatArray, second: FloatArray) -> BlockComparison | None:
    """Compare two series of positive values.

    Args:
        first: values of the first run in the order of its steps.
        second: values of the second run.

    Returns:
        The comparison; None if a run has fewer than four values, or values that are not positive.
    """
    blocks = min(BLOCKS, len(first) // 2, len(second) // 2)
    if blocks < 2:
        return None
    means = [
        np.array([part.mean() for part in np.array_split(each, blocks)]) for each in (first, second)
    ]
    if not all(np.isfinite(each).all() and (each > 0).all() for each in means):
        return None
    return compare_logarithms(np.log(means[1]) - np.log(means[0]))


def compare_logarithms(differences: FloatArray) -> BlockComparison:
    """Test whether the mean of differences of logarithms is zero; at least two are needed."""
    from scipy import stats

    count = len(differences)
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    reach = compute_student_quantile(count - 1)
    return BlockComparison(
        ratio=math.exp(mean),
        low=math.exp(mean - reach * error),
        high=math.exp(mean + reach * error),
        detectable=math.expm1((reach + float(stats.t.ppf(POWER, count - 1))) * error),
        blocks=count,
    )
