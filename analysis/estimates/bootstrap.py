"""Effects with 95 % bootstrap intervals: paired or of two samples.

The interval is the expanded percentile interval (T. C. Hesterberg, The American Statistician 69,
2015): the quantiles of the resampled means, taken further out, as far as Student's interval is
wider than a normal one with the resampled error. Plain percentile and BCa intervals are too narrow
for few values: of three normal values they contain the mean in 77 % and 74 % of cases instead of
95 %.

Fewer than six values cannot have a 95 % interval by resampling, because all resamples lie between
the smallest and the largest value (n values enclose their median with probability 1 - 2^(1-n)).
Student's and Welch's intervals are used there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from laggard.analysis.estimates.estimate import (
    Estimate,
    Key,
    compute_student_quantile,
    compute_welch_error,
    estimate_difference,
    limit_estimate,
    match_pairs,
)

Method = Literal["paired bootstrap", "two-sample bootstrap", "paired Student", "Welch", "none"]

MIN_BOOTSTRAP_REPEATS = 6
"""Smallest number of values that are resampled: 1 - 2^(1-6) = 97 %."""

RESAMPLES = 4999


@dataclass(frozen=True)
class Effect:
    """Difference or ratio of two setups.

    Attributes:
        value: estimate of the effect with its 95 % interval.
        method: origin of the interval; `none` with fewer than two repeats.
        repeats: number of pairs, or of the repeats of the smaller sample.
    """

    value: Estimate
    method: Method
    repeats: int


def estimate_effect(
    first: Mapping[Key, float],
    other: Mapping[Key, float],
    largest: float = math.inf,
    seed: int = 0,
) -> Effect:
    """Return the difference `other` minus `first` of two samples.

    Args:
        first: measured values by key; at least one.
        other: measured values by key; at least one.
        largest: largest possible absolute difference; the interval is cut there.
        seed: seed of the resamples.

    Returns:
        The effect. It does not depend on the order of the keys.
    """
    pairs = match_pairs(first, other)
    is_paired = pairs is not None
    repeats = min(len(first), len(other)) if pairs is None else len(pairs)
    if repeats < MIN_BOOTSTRAP_REPEATS:
        value = estimate_difference(first, other, largest)
        method: Method = "paired Student" if is_paired else "Welch"
        return Effect(value, method if value.low is not None else "none", repeats)
    generator = np.random.default_rng(seed)
    if pairs is None:
        samples = [_sort_values(each) for each in (first, other)]
        error, freedom = compute_welch_error(*(each.tolist() for each in samples))
        means = _resample_means(samples[1], generator) - _resample_means(samples[0], generator)
        mean = float(samples[1].mean() - samples[0].mean())
        method = "two-sample bootstrap"
    else:
        samples = [np.array([after - before for before, after in pairs])]
        error, freedom = float(samples[0].std(ddof=1)) / math.sqrt(repeats), repeats - 1.0
        means = _resample_means(samples[0], generator)
        mean = float(samples[0].mean())
        method = "paired bootstrap"
    low, high = _find_expanded_ends(means, samples, error, freedom)
    value = limit_estimate(Estimate(mean, low, high), -largest, largest)
    return Effect(value, method, repeats)


def _sort_values(sample: Mapping[Key, float]) -> npt.NDArray[np.float64]:
    return np.array([sample[key] for key in sorted(sample)])


def _resample_means(
    values: npt.NDArray[np.float64], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    chosen = generator.integers(0, len(values), (RESAMPLES, len(values)))
    means: npt.NDArray[np.float64] = values[chosen].mean(axis=1)
    return means


def _find_expanded_ends(
    means: npt.NDArray[np.float64],
    samples: Sequence[npt.NDArray[np.float64]],
    error: float,
    freedom: float,
) -> tuple[float, float]:
    from scipy import stats

    # A resample's variance divides by n, and the error of the mean by n - 1.
    resampled = math.sqrt(sum(float(each.var()) / len(each) for each in samples))
    if not resampled:
        return float(means[0]), float(means[0])
    tail = float(stats.norm.cdf(-compute_student_quantile(freedom) * error / resampled))
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
