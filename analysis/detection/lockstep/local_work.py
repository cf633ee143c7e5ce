"""Detector of slow local work: intervals in which a rank's own phases take longer than usual."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.families import FamilySpec
from laggard.analysis.detection.intervals import MIN_STEPS
from laggard.analysis.detection.lockstep.cause_detector import DetectionInput
from laggard.analysis.detection.reference import compute_log_ratio
from laggard.analysis.detection.series_causes import (
    MIN_MAKESPAN_SHARE,
    LogRatioSeries,
    find_series_causes,
)
from laggard.analysis.tables.columns import FloatArray


@dataclass(frozen=True)
class LocalWorkDetector:
    """Detector of deterministic and dynamic causes of one family of local work.

    Args:
        family: family of local work, with at least one phase.
    """

    family: FamilySpec

    def __call__(self, run: DetectionInput, found: tuple[Cause, ...]) -> tuple[Cause, ...]:
        """Add the causes of every rank to those already found.

        A rank that spends under 1 % of the makespan on the family has no cause of it.
        """
        codes = list(self.family.codes)
        usable = np.flatnonzero(~run.timeline.warm_up)
        if len(usable) < 2 * MIN_STEPS:
            return found
        least = MIN_MAKESPAN_SHARE * run.timeline.makespan
        local: list[Cause] = []
        for rank in range(run.timeline.samples.shape[1]):
            seconds = run.timeline.work.of_rank(rank, codes).sum(axis=1)[usable]
            if seconds.sum() >= least:
                own = run.references.own.total(rank, codes)[usable]
                logs, moved = compute_log_ratio(seconds, own), run.drift[usable]
                # Compute always follows the machine's drift. Another family is corrected only if
                # that makes its series steadier: a drive may keep its speed while the machine
                # slows down.
                steady = not self.family.uses_processor and _compute_median_deviation(
                    logs
                ) <= _compute_median_deviation(logs - moved)
                to_fleet = compute_log_ratio(own, run.references.fleet.total(rank, codes)[usable])
                series = LogRatioSeries(
                    logs if steady else logs - moved, to_fleet, usable, run.references.scatter
                )
                local += find_series_causes(series, self.family.name, rank)
        return (*found, *local)


def _compute_median_deviation(logs: FloatArray) -> float:
    """Return the median absolute deviation of a series from its median."""
    return float(np.median(np.abs(logs - np.median(logs))))
