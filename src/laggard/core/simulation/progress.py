"""Samples that ranks have processed over time, and the time at which a goal is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray

_PRECISION = 1e-10
"""Relative tolerance of the time at which a goal is reached."""


@dataclass(frozen=True)
class RankProgress:
    """Samples that one rank has processed over time.

    Attributes:
        when_s: start of the first step and end of every step, [N + 1].
        samples_learned: samples processed by then, [N + 1].
        rate: samples per second after the last step.
    """

    when_s: FloatArray
    samples_learned: FloatArray
    rate: float


def count_samples_by(time_s: float, progress: Sequence[RankProgress]) -> float:
    """Return the samples processed at a time; a step in progress counts in part."""
    total = 0.0
    for course in progress:
        beyond_s = max(time_s - float(course.when_s[-1]), 0.0)
        total += (
            float(np.interp(time_s, course.when_s, course.samples_learned)) + course.rate * beyond_s
        )
    return total


def find_goal_time_s(
    progress: Sequence[RankProgress], goal_samples: float, guess_s: float
) -> float:
    """Return the time at which the ranks together have processed the samples of the goal.

    Args:
        progress: progress of every rank; some rank continues after its last step.
        goal_samples: samples to process.
        guess_s: positive time at which the search begins.
    """
    from scipy.optimize import brentq

    # The number of samples grows with time, so doubling finds a bracket for the root.
    low, high = 0.0, guess_s
    while count_samples_by(high, progress) < goal_samples:
        low, high = high, 2 * high
    found: float = brentq(
        lambda time_s: count_samples_by(time_s, progress) - goal_samples, low, high, rtol=_PRECISION
    )
    return found
