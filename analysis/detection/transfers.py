"""Transfer times of the collectives relative to their own usual durations.

The same collective of a step (by its number) is compared with itself over the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.reference import compute_log_ratio
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.analysis.tables.timelines.timeline import ROWS_AT_ONCE, Timeline


@dataclass(frozen=True)
class Transfers:
    """Transfer times per barrier [E] and per step [S].

    Attributes:
        seconds: transfer time of each barrier: the median over the ranks that stayed until the
            last one arrived.
        expected: median of the same collective over the run.
        step_seconds: sum over the collectives of a step.
        step_logs: ln(transfer time of the step / expected), 0 in steps without transfers.
        usual_step_s: median of `step_seconds` over the steps that have any.
    """

    seconds: FloatArray
    expected: FloatArray
    step_seconds: FloatArray
    step_logs: FloatArray
    usual_step_s: float

    @property
    def has_transfers(self) -> BoolArray:
        """Return a mask of the steps with transfers, [S]; some strategies rarely synchronize."""
        has_transfers: BoolArray = self.step_seconds > 0
        return has_transfers


def measure_transfers(timeline: Timeline) -> Transfers:
    """Measure every collective of a run; evaluation pauses count as 0."""
    seconds = np.where(timeline.pause, 0.0, _compute_median_s(timeline))
    expected = np.zeros_like(seconds)
    counted = ~timeline.warm_up[timeline.barrier_step]
    for group in np.unique(timeline.group[~timeline.pause]):
        of_group = timeline.group == group
        sample = seconds[of_group & counted] if (of_group & counted).any() else seconds[of_group]
        expected[of_group] = np.median(sample)
    steps = len(timeline.steps)
    step_seconds = np.bincount(timeline.barrier_step, weights=seconds, minlength=steps)
    step_expected = np.bincount(timeline.barrier_step, weights=expected, minlength=steps)
    logs = compute_log_ratio(step_seconds, step_expected)
    usual = float(np.median(step_seconds[step_seconds > 0])) if (step_seconds > 0).any() else 0.0
    return Transfers(seconds, expected, step_seconds.astype(np.float64), logs, usual)


def _compute_median_s(timeline: Timeline) -> FloatArray:
    """Return the median over the ranks that stayed until the last arrival, [E]; 0 if none did."""
    seconds = np.zeros(len(timeline.group))
    for begin in range(0, len(seconds), ROWS_AT_ONCE):
        rows = np.s_[begin : begin + ROWS_AT_ONCE]
        transfer, depends = timeline.transfer_at(rows), timeline.depends[rows]
        if depends.all():
            seconds[rows] = np.median(transfer, axis=1)
            continue
        transfer[~depends] = np.nan
        transfer[~depends.any(axis=1)] = 0.0
        seconds[rows] = np.nanmedian(transfer, axis=1)
    return seconds
