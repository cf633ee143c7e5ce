"""Page's test: a cumulative sum that rises while steps take longer than usual, for many series at
once.

One-sided (Page, Biometrika 41, 1954): S = max(0, S + x - k), an alarm where S reaches h. With k at
half the shift that is looked for it is the repeated likelihood-ratio test, which of all tests with
as few false alarms finds that shift soonest (Lorden, Ann. Math. Stat. 42, 1971; Moustakides, Ann.
Stat. 14, 1986). h follows from how seldom it may be wrong, by Siegmund's approximation (Sequential
Analysis, 1985).

What a step adds is bounded, so that no fewer than seven can raise an alarm: spikes of a few steps
are no slow interval, whatever their height.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from laggard.analysis.tables.columns import FloatArray

FALSE_ALARMS_PER_1000_STEPS = 0.1
"""Of a whole run, all its series together: a fifth of what is allowed, as steps are not quite
normal: they have spikes."""
LEAST_EVIDENCE_STEPS = 7
"""Of the ten steps that make an interval: spikes of three steps come twice in a row, not thrice."""
_OVERSHOOT = 1.166
_LEAST_THRESHOLD = 1.0
_REVERSAL = 2.0
"""A step against an alarm may take off what so many for it have added."""
_ROUNDS = 6
_FULL = 1.0 - 1e-9


def compute_alarm_interval(series: int, per_1000: float = FALSE_ALARMS_PER_1000_STEPS) -> float:
    """How many steps one series must go, on average, without a false alarm, so that `series` of
    them keep the budget.
    """
    return 1000.0 * series / per_1000


def compute_thresholds(allowance: npt.ArrayLike, steps: float) -> FloatArray:
    """Page's h in standard deviations.

    Args:
        allowance: k in standard deviations, [N]; above 0.
        steps: how many pass between two false alarms on average, if steps are normal and
            independent.

    Returns:
        h, [N], at least 1: solves (exp(2 k b) - 2 k b - 1) / (2 k^2) = `steps` for b = h + 1.166.
    """
    k = np.asarray(allowance, dtype=np.float64)
    exponent = np.ones_like(k)
    for _ in range(_ROUNDS):
        exponent = np.log(2.0 * k * k * steps + 1.0 + exponent)
    return np.maximum(exponent / (2.0 * k) - _OVERSHOOT, _LEAST_THRESHOLD)


def advance_sums(total: FloatArray, evidence: FloatArray, threshold: FloatArray) -> FloatArray:
    """The sums after one more step of each series.

    Args:
        total: before it, [N].
        evidence: x - k, [N].
        threshold: h in the unit of `evidence`, [N]; sums go no higher, so that they come down again
            as soon.

    Returns:
        Sums, [N].
    """
    most = threshold / LEAST_EVIDENCE_STEPS
    moved: FloatArray = np.clip(total + np.clip(evidence, -_REVERSAL * most, most), 0.0, threshold)
    return moved


def has_reached(total: FloatArray, threshold: FloatArray) -> npt.NDArray[np.bool_]:
    """Which sums have come to their thresholds, [N]; seven times a seventh counts as one."""
    full: npt.NDArray[np.bool_] = total >= _FULL * threshold
    return full
