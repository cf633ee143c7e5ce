"""Probability that each of several variants is the best.

It is a bootstrap over the repeats: every resample reweighs the repeats, the variant with the
smallest mean wins, and ties are split. The weights are normal and scaled to Student's distribution
(a multiplier bootstrap). For two variants the probability is therefore the one-sided p-value of the
t-test. Drawing repeats with replacement instead would be too sure: of three pairs of equal
variants, all agree in one case of four, and every such resample would name the same winner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from laggard.analysis.estimates.estimate import Key, has_enough_pairs

MIN_REPEATS = 2
"""Smallest number of repeats of every variant that tells something of their spread."""

_RESAMPLES = 20_000
_MOST_VARIANTS = 500


def estimate_best(
    variants: Sequence[Mapping[Key, float]], seed: int = 0
) -> tuple[float, ...] | None:
    """Return the probability of every variant that its mean is the smallest.

    Args:
        variants: measured values by key; smaller values are better. If the variants have common
            keys (see `has_enough_pairs`), the repeats of a key are reweighed together.
        seed: seed of the weights.

    Returns:
        Probabilities that add up to 1; None if a variant has fewer than `MIN_REPEATS` repeats, or
        if there are more than 500 variants.
    """
    if not variants or len(variants) > _MOST_VARIANTS:
        return None
    if min(map(len, variants)) < MIN_REPEATS:
        return None
    generator = np.random.default_rng(seed)
    common = sorted(set.intersection(*(set(each) for each in variants)))
    if has_enough_pairs(len(common), map(len, variants)):
        table = np.array([[each[key] for each in variants] for key in common])
        means = _reweigh_means(table, generator)
    else:
        columns = [np.array([[each[key]] for key in sorted(each)]) for each in variants]
        means = np.concatenate([_reweigh_means(column, generator) for column in columns], axis=1)
    wins = means == means.min(axis=1, keepdims=True)
    shares = (wins / wins.sum(axis=1, keepdims=True)).mean(axis=0)
    return tuple(float(share) for share in shares)


def _reweigh_means(
    values: npt.NDArray[np.float64], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return means of reweighed repeats, one row per resample; a column is a variant."""
    repeats = len(values)
    weights = generator.standard_normal((_RESAMPLES, repeats))
    spread = np.sqrt((repeats - 1) / generator.chisquare(repeats - 1, (_RESAMPLES, 1)))
    mean = values.mean(axis=0)
    # Deviations weighted so have the covariance of the means; the spread makes them Student's.
    moved = weights @ (values - mean) / np.sqrt(repeats * (repeats - 1))
    means: npt.NDArray[np.float64] = mean + spread * moved
    return means
