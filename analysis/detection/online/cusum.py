"""Page's test for many series at once: a sum that rises while steps take longer than usual.

The test is one-sided (Page, Biometrika 41, 1954): S = max(0, S + x - k), with an alarm when S
reaches h. With k at half the shift to detect, it is the repeated likelihood-ratio test. Among all
tests with as few false alarms, that one detects the shift soonest (Lorden, Ann. Math. Stat. 42,
1971; Moustakides, Ann. Stat. 14, 1986). h follows from the accepted rate of false alarms by
Siegmund's approximation (Sequential Analysis, 1985).

The contribution of one step is bounded, so at least seven steps are needed for an alarm: spikes of
a few steps are no slow interval, however high they are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from laggard.analysis.tables.columns import FloatArray

FALSE_ALARMS_PER_1000_STEPS = 0.1
"""Budget of false alarms for a whole run, all its series together. It is a fifth of the allowed
rate, because real steps are not quite normal: they have spikes."""
LEAST_EVIDENCE_STEPS = 7
"""Least number of steps for an alarm, of the ten that make an interval. Spikes of three steps
may come twice in a row, but not three times."""
# Siegmund's correction: the sum passes the threshold by 0.583 standard deviations, counted twice.
_OVERSHOOT = 1.166
_LEAST_THRESHOLD = 1.0
_REVERSAL = 2.0
"""One step against an alarm may subtract as much as this many steps for it have added."""
# Fixed-point iterations for h.
_ROUNDS = 6
# Seven bounded contributions sum to the threshold only up to rounding.
_FULL = 1.0 - 1e-9


def compute_alarm_interval(series: int, per_1000: float = FALSE_ALARMS_PER_1000_STEPS) -> float:
    """Return the average steps between false alarms that one series needs to keep the budget.

    Args:
        series: number of series that share the budget.
        per_1000: budget of false alarms in 1,000 steps of all series together.
    """
    return 1000.0 * series / per_1000


def compute_thresholds(allowance: npt.ArrayLike, steps: float) -> FloatArray:
    """Return Page's threshold h in standard deviations.

    Args:
        allowance: k in standard deviations, [N]; above 0.
        steps: average number of steps between two false alarms, if steps are normal and
            independent.

    Returns:
        h, [N], at least 1: the solution of (exp(2 k b) - 2 k b - 1) / (2 k^2) = `steps` for b = h
        + 1.166.
    """
    k = np.asarray(allowance, dtype=np.float64)
    exponent = np.ones_like(k)
    for _ in range(_ROUNDS):
        exponent = np.log(2.0 * k * k * steps + 1.0 + exponent)
    return np.maximum(exponent / (2.0 * k) - _OVERSHOOT, _LEAST_THRESHOLD)


def advance_sums(total: FloatArray, evidence: FloatArray, threshold: FloatArray) -> FloatArray:
    """Return the sums after one more step of each series.

    Args:
        total: sums before the step, [N].
        evidence: x - k, [N].
        threshold: h in the unit of `evidence`, [N]. Sums are capped at it, so that they fall again
            as soon as steps are normal.

    Returns:
        Sums, [N].
    """
    most = threshold / LEAST_EVIDENCE_STEPS
    moved: FloatArray = np.clip(total + np.clip(evidence, -_REVERSAL * most, most), 0.0, threshold)
    return moved


def has_reached(total: FloatArray, threshold: FloatArray) -> npt.NDArray[np.bool_]:
    """Return a mask of the sums that have reached their thresholds, [N]."""
    full: npt.NDArray[np.bool_] = total >= _FULL * threshold
    return full
