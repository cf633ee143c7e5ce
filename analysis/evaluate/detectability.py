"""Bound of detectability: a likelihood-ratio test that knows time, place and size of a slowdown.

In log durations, a slowdown is a shift of ln m during n steps of noise with standard deviation
sigma. By the lemma of Neyman and Pearson (Phil. Trans. R. Soc. A 231, 1933), no test is more
powerful than the one on the sum of those steps. Its statistic is normal, with mean 0 without the
shift and mean d = sqrt(n) ln m / sigma with it. Its error probabilities are at most alpha (false
alarm) and beta (miss) only if d >= z(1 - alpha) + z(1 - beta). A detector that must also find
time, place and size needs more.

The error rates were derived from the goals before anything was scored:

- alpha: 0.5 false alarms in 1,000 clean steps. A run of four ranks, the smallest in the grid, has
  five series (one per rank, and the collectives'). In 1,000 steps they have 500 windows of ten
  steps, the shortest interval that counts, so alpha is 0.5 / 500 = 0.001.
- beta: 0.05, since a recall below 0.95 cannot reach the required F1 with any precision below 1.
"""

from __future__ import annotations

import math
from statistics import NormalDist

FALSE_ALARM_PROBABILITY = 0.001
MISS_PROBABILITY = 0.05
LEAST_EVIDENCE = (
    NormalDist().inv_cdf(1.0 - FALSE_ALARM_PROBABILITY)
    + NormalDist().inv_cdf(1.0 - MISS_PROBABILITY)
) ** 2
"""Least value of `compute_evidence` for a detectable slowdown, 22.4: the square of z(1 - alpha)
+ z(1 - beta)."""


def compute_evidence(length: int, magnitude: float, sigma: float) -> float:
    """Return the evidence for a slowdown in all of its steps together: n (ln m / sigma)^2.

    Args:
        length: number of steps, n.
        magnitude: ratio of durations, m.
        sigma: standard deviation of the log durations from step to step; 0 for a series without
            noise.

    Returns:
        The square of the test's d; infinite without noise.
    """
    shift = math.log(magnitude)
    if sigma <= 0.0:
        return math.inf if shift else 0.0
    return length * (shift / sigma) ** 2


def is_detectable(length: int, magnitude: float, sigma: float) -> bool:
    """Return whether the test that knows time, place and size could detect a slowdown.

    The arguments are those of `compute_evidence`.
    """
    return compute_evidence(length, magnitude, sigma) >= LEAST_EVIDENCE
