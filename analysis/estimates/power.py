"""Power: the repeats that would tell two variants apart.

The power is that of the two-sided t-test at 5 %, from the noncentral t-distribution (J. Cohen,
Statistical Power Analysis for the Behavioral Sciences, 1988). The measured difference and spread
stand for the true ones, so the number is a guide: of few repeats it is uncertain itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from laggard.analysis.estimates.estimate import Key, compute_student_quantile, match_pairs

TARGET = 0.8
MOST_REPEATS = 100_000

_NODES = 200
"""Points of the numerical integration; more change the fifth digit."""


@dataclass(frozen=True)
class Power:
    """Power of the comparison of two variants.

    Attributes:
        power: probability that as many repeats as now find the difference.
        repeats: number of repeats of each variant that find it with a probability of 80 %; None if
            there is no difference, or if more than `MOST_REPEATS` are needed.
        is_paired: True if the variants are compared pair by pair.
    """

    power: float
    repeats: int | None
    is_paired: bool


def estimate_power(first: Mapping[Key, float], other: Mapping[Key, float]) -> Power | None:
    """Return the power of the comparison of two samples.

    Returns:
        None if a sample has fewer than two values.
    """
    pairs = match_pairs(first, other)
    if min(len(first), len(other)) < 2 or (pairs is not None and len(pairs) < 2):
        return None
    if pairs is not None:
        changes = [after - before for before, after in pairs]
        difference, deviation = statistics.fmean(changes), statistics.stdev(changes)
        now = len(pairs)

        def compute(repeats: int) -> float:
            return compute_paired_power(difference, deviation, repeats)

    else:
        samples = [list(each.values()) for each in (first, other)]
        difference = statistics.fmean(samples[1]) - statistics.fmean(samples[0])
        deviations = (statistics.stdev(samples[0]), statistics.stdev(samples[1]))
        now = min(map(len, samples))

        def compute(repeats: int) -> float:
            return compute_welch_power(difference, deviations, repeats)

    return Power(compute(now), find_repeats(compute) if difference else None, pairs is not None)


def compute_paired_power(difference: float, deviation: float, repeats: int) -> float:
    """Return the power of the paired t-test.

    Args:
        difference: true mean of the differences.
        deviation: standard deviation of the differences.
        repeats: number of pairs, at least two.
    """
    return _compute_power(difference, deviation / math.sqrt(repeats), repeats - 1)


def compute_welch_power(difference: float, deviations: tuple[float, float], repeats: int) -> float:
    """Return the power of Welch's test with equally many repeats.

    Args:
        difference: true difference of the means.
        deviations: standard deviations of both samples.
        repeats: number of repeats of each, at least two.
    """
    errors = [deviation**2 / repeats for deviation in deviations]
    total = sum(errors)
    freedom = (
        (repeats - 1) / sum((error / total) ** 2 for error in errors) if total else repeats - 1.0
    )
    return _compute_power(difference, math.sqrt(total), freedom)


def find_repeats(compute: Callable[[int], float], target: float = TARGET) -> int | None:
    """Return the smallest number of repeats that reaches a power.

    Args:
        compute: power of a number of repeats, at least two; it increases with the number.
        target: power to reach.

    Returns:
        None if `MOST_REPEATS` are not enough.
    """
    low, high = 1, 2
    while compute(high) < target:
        if high >= MOST_REPEATS:
            return None
        low, high = high, min(2 * high, MOST_REPEATS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if compute(middle) >= target else (middle, high)
    return high


def _compute_power(difference: float, error: float, freedom: float) -> float:
    """Return the probability that a noncentral t-variable exceeds the critical value.

    It is the mean over the spread of the sample: SciPy's own distribution is not a number for some
    large shifts.
    """
    import numpy as np
    from scipy import stats

    if not difference:
        return 0.05
    if not error:
        return 1.0
    shift = abs(difference) / error
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    spread = np.sqrt(stats.chi2.ppf((nodes + 1) / 2, freedom) / freedom)
    critical = compute_student_quantile(freedom) * spread
    found = stats.norm.cdf(shift - critical) + stats.norm.cdf(-shift - critical)
    return float(weights @ found) / 2
