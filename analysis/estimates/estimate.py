"""Means, differences and ratios over repeats, with Student's and Welch's 95 % intervals.

- Positive values (makespans, bytes, prices) are averaged as logarithms, so that twice as fast and
  half as fast cancel out. Other values are averaged as they are.
- Two samples that share most of their keys are compared key by key. Otherwise Welch's interval for
  the difference of two means is used (B. L. Welch, Biometrika 34, 1947).
- An interval never contains impossible values: it is cut at the bounds of its quantity. The cut
  costs no coverage, because the true value is never outside. With two repeats Student's interval
  is wide, and cut more often than not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Key = tuple[int, int]
"""Key of a repeat: its seed, and its number among the repeats of this seed."""

Pairs = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Estimate:
    """Mean over repeats, and the ends of its 95 % interval; None with fewer than two repeats."""

    mean: float
    low: float | None
    high: float | None


def estimate_mean(
    values: Sequence[float], least: float = -math.inf, most: float = math.inf
) -> Estimate:
    """Return the mean and Student's 95 % interval.

    Args:
        values: measured values.
        least: smallest possible value; the interval is cut there.
        most: largest possible value.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, None)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return make_estimate(mean, error, len(values) - 1, least, most)


def estimate_difference(
    first: Mapping[Key, float], other: Mapping[Key, float], largest: float = math.inf
) -> Estimate:
    """Return the difference `other` minus `first`.

    Args:
        first: measured values by key.
        other: measured values by key.
        largest: largest possible absolute difference; the interval is cut there.

    Returns:
        The difference of the means with its 95 % interval: from pairs if the samples have them
        (see `match_pairs`), else Welch's.
    """
    pairs = match_pairs(first, other)
    if pairs is not None:
        return estimate_mean([after - before for before, after in pairs], -largest, largest)
    mean = statistics.fmean(other.values()) - statistics.fmean(first.values())
    if min(len(first), len(other)) < 2:
        return Estimate(mean, None, None)
    error, freedom = compute_welch_error(list(first.values()), list(other.values()))
    return make_estimate(mean, error, freedom, -largest, largest)


def estimate_ratio(first: Mapping[Key, float], other: Mapping[Key, float]) -> Estimate:
    """Return the ratio `first` over `other`; for makespans, the speedup of `other`.

    Args:
        first: measured values by key, above 0.
        other: measured values by key, above 0.

    Returns:
        The geometric mean of the ratio with its 95 % interval, computed from the difference of the
        logarithms.
    """
    return to_exponential(estimate_difference(to_logarithms(other), to_logarithms(first)))


def estimate_geometric_mean(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of values above 0, with Student's interval of the logarithms."""
    return to_exponential(estimate_mean([math.log(value) for value in values]))


def match_pairs(first: Mapping[Key, float], other: Mapping[Key, float]) -> Pairs | None:
    """Return the pairs of values with the same key, in the order of the keys.

    Returns:
        None if the samples have different keys, and not enough common ones. Otherwise values
        without a partner are ignored, for example those of a repeat that failed.
    """
    common = sorted(first.keys() & other.keys())
    if first.keys() != other.keys() and not has_enough_pairs(len(common), (len(first), len(other))):
        return None
    return tuple((first[key], other[key]) for key in common)


def has_enough_pairs(common: int, sizes: Iterable[int]) -> bool:
    """Return True if there are two common keys at least, and half of the largest sample."""
    return common >= 2 and 2 * common >= max(sizes)


def compute_welch_error(*samples: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of the sum or difference of means, and its degrees of freedom.

    The degrees of freedom are those of Welch and Satterthwaite; each sample has two values at
    least.
    """
    errors = [statistics.variance(each) / len(each) for each in samples]
    total = sum(errors)
    if not total:
        return 0.0, float(sum(map(len, samples)) - len(samples))
    # Shares of the total, because the squares of tiny variances would underflow.
    shares = [error / total for error in errors]
    freedom = 1.0 / sum(
        share**2 / (len(each) - 1) for share, each in zip(shares, samples, strict=True)
    )
    return math.sqrt(total), freedom


def make_estimate(
    mean: float,
    error: float,
    freedom: float,
    least: float = -math.inf,
    most: float = math.inf,
) -> Estimate:
    """Return a mean with Student's interval, cut at the possible values.

    Args:
        mean: mean of the values.
        error: its standard error.
        freedom: degrees of freedom of the error.
        least: smallest possible value.
        most: largest possible value.
    """
    reach = compute_student_quantile(freedom) * error
    return limit_estimate(Estimate(mean, mean - reach, mean + reach), least, most)


def limit_estimate(estimate: Estimate, least: float, most: float) -> Estimate:
    """Return the estimate with its interval cut at the possible values, but not at its mean."""
    if estimate.low is None or estimate.high is None:
        return estimate
    mean = estimate.mean
    return Estimate(mean, max(estimate.low, min(least, mean)), min(estimate.high, max(most, mean)))


def to_logarithms(values: Mapping[Key, float]) -> dict[Key, float]:
    """Return the logarithms of values above 0."""
    return {key: math.log(value) for key, value in values.items()}


def to_exponential(log_estimate: Estimate) -> Estimate:
    """Return the estimate of a ratio from that of its logarithm."""
    return Estimate(
        _exponential(log_estimate.mean),
        None if log_estimate.low is None else _exponential(log_estimate.low),
        None if log_estimate.high is None else _exponential(log_estimate.high),
    )


def scale_estimate(estimate: Estimate, by: float) -> Estimate:
    """Return the estimate in another unit."""
    return Estimate(
        estimate.mean * by,
        None if estimate.low is None else estimate.low * by,
        None if estimate.high is None else estimate.high * by,
    )


def _exponential(value: float) -> float:
    # The bounds of the interval of very different values exceed the range of a number.
    return math.exp(min(max(value, -700.0), 700.0))


def compute_student_quantile(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's distribution."""
    from scipy import stats

    return float(stats.t.ppf(0.975, freedom))
