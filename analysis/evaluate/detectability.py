"""What no detector could see: the bound of a likelihood-ratio test that knows when, where and how
large.

In log durations a slowness is a shift of ln m during n steps of noise with standard deviation
sigma. By the lemma of Neyman and Pearson (Phil. Trans. R. Soc. A 231, 1933) no test is more
powerful than that on the sum of those steps, whose statistic is normal, with mean 0 without the
shift and d = sqrt(n) ln m / sigma with it. It errs with probabilities alpha (an alarm for nothing)
and beta (a miss) only if d >= z(1 - alpha) + z(1 - beta); whoever has to find time, place and size
too needs more.

The error rates were fixed from the goals, before anything was scored:

- alpha: 0.5 false alarms in 1,000 clean steps. A run of four ranks, the fewest there are, has five
  series (a rank's each, and the collectives'), so 500 windows of ten steps, the shortest that
  count, in 1,000 steps: 0.5 / 500 = 0.001.
- beta: 0.05, as a recall below 0.95 cannot give the F1 that is asked for with any precision short
  of 1.
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
"""What `compute_evidence` must be, 22.4: the square of z(1 - alpha) + z(1 - beta)."""


def compute_evidence(length: int, magnitude: float, sigma: float) -> float:
    """How far a slowness stands out in all of its steps together: n (ln m / sigma)^2.

    Args:
        length: n, its steps.
        magnitude: m, the ratio of durations.
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
    """Whether a test that knows when, where and how large could tell (arguments as
    `compute_evidence`).
    """
    return compute_evidence(length, magnitude, sigma) >= LEAST_EVIDENCE
