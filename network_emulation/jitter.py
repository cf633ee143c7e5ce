"""Jitter: distributions of delays as in the kernel's netem (tc-netem(8)), for both backends.

A packet's delay is delay + jitter · X, never below 0 (netem sends overdue packets at once). X is

    uniform   uniform in -1 … 1: delay ± jitter
    normal    standard normal: jitter is the standard deviation
    pareto    4/3 · (U^(-1/3) - 3/2), U uniform in 0 … 1: a Pareto distribution of shape 3
              about its mean, which would have a standard deviation of 1.15; from -0.67 up,
              median -0.32

The last two are tables of 4096 equally likely values in units of 1/8192. They are made like
iproute2's `normal.dist` and `pareto.dist` (netem/normal.c and netem/pareto.c, after Carson and
Santay's NIST Net, ACM CCR 33(3), 2003). An entry has 16 bits, so X never exceeds 4 in either
direction. This cuts little from the normal distribution, and the longest tail from the Pareto: its
table has mean -0.03 and standard deviation 0.82. iproute2's own tables have the same numbers (the
normal ones to the last digit).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

Distribution = Literal["uniform", "normal", "pareto"]

REACH: Mapping[Distribution, float] = {"uniform": 1.0, "normal": 4.0, "pareto": 4.0}
"""Largest excess of a packet's delay over the configured delay, in units of jitter."""

SPREAD: Mapping[Distribution, float] = {"uniform": 2.0, "normal": 4.0, "pareto": 4.0}
"""Distance between packets, in units of jitter, at which they rarely wait for the previous
packet in order not to overtake it: never, 0.2 %, 0.8 % of them."""

_ENTRIES = 4096
_SCALE = 8192
_LEAST, _MOST = -(1 << 15), (1 << 15) - 1
_GRID = 128
"""Number of quantiles that describe the delays of one link."""


@cache
def build_offset_table(distribution: Distribution) -> tuple[float, ...]:
    """Return the table of X: equally likely values in increasing order.

    It is empty for the uniform distribution, which needs no table.
    """
    if distribution == "uniform":
        return ()
    entries = map(
        _compute_normal_offset if distribution == "normal" else _compute_pareto_offset,
        range(_ENTRIES),
    )
    return tuple(max(_LEAST, min(_MOST, round(_SCALE * entry))) / _SCALE for entry in entries)


def _compute_normal_offset(entry: int) -> float:
    # Imported here, because only links with normal jitter need it.
    from statistics import NormalDist

    return NormalDist().inv_cdf((4 * entry + 0.5) / (4 * _ENTRIES))


def _compute_pareto_offset(entry: int) -> float:
    return float((1.0 - entry / _ENTRIES) ** (-1 / 3) - 1.5) * 4 / 3


@cache
def delay_grid_ms(
    delay_ms: float, jitter_ms: float, distribution: Distribution
) -> tuple[float, ...]:
    """Return the delays of one link at equally spaced quantiles, in increasing order."""
    if not jitter_ms:
        return (delay_ms,)
    table = build_offset_table(distribution)
    middles = [(i + 0.5) / _GRID for i in range(_GRID)]
    drawn = [table[int(middle * _ENTRIES)] if table else 2 * middle - 1 for middle in middles]
    return tuple(max(0.0, delay_ms + jitter_ms * x) for x in drawn)


def median_of_sum_ms(
    there_ms: Sequence[float], back_ms: Sequence[float], samples: int
) -> tuple[float, float]:
    """Return the median of the sum of two delays, and its largest likely error in a sample.

    Args:
        there_ms: quantiles of the first delay (see `delay_grid_ms`).
        back_ms: quantiles of the second delay.
        samples: size of the sample.

    Returns:
        The median, and the error: the larger distance from the median to the bounds that a
            sample's median exceeds once in 32 000 samples each (as often as a normal variable
            exceeds four standard deviations). For all distributions, those bounds are quantiles of
            the sum.
    """
    sums = sorted(there + back for there in there_ms for back in back_ms)
    upper = _median_bound(samples)
    low, middle, high = (
        _interpolate_quantile(sums, quantile) for quantile in (1 - upper, 0.5, upper)
    )
    return middle, max(high - middle, middle - low)


def _interpolate_quantile(ordered: Sequence[float], quantile: float) -> float:
    position = quantile * len(ordered) - 0.5
    below = min(max(math.floor(position), 0), len(ordered) - 1)
    above = min(below + 1, len(ordered) - 1)
    weight = min(max(position - below, 0.0), 1.0)
    return ordered[below] * (1 - weight) + ordered[above] * weight


@cache
def _median_bound(samples: int) -> float:
    """Return the quantile that a sample's median exceeds with the probability of four sigmas.

    The probability that at least half of the sample lies above it is binomial; it is bisected.
    """
    rare = math.erfc(4.0 / math.sqrt(2.0)) / 2
    half = math.ceil(samples / 2)
    low, high = 0.5, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        above = 1 - middle
        many = sum(
            math.comb(samples, k) * above**k * middle ** (samples - k)
            for k in range(half, samples + 1)
        )
        low, high = (middle, high) if many > rare else (low, middle)
    return high
