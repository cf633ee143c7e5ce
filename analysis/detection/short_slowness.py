"""Slow steps that are too few for an interval, but so slow that they cost 1 % of the makespan.

A link that loses everything for three seconds may slow down a single step, and garbage collection
a step in twenty. Ranks are compared with one another in the same step, because a step in which
most ranks are slow is a longer step and not the fault of a rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.intervals import (
    MERGE_RATIO,
    MIN_RATIO,
    MIN_Z,
    TO_SIGMA,
    compute_confidence,
)
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray

MIN_REPEATED = 3
"""Least number of slow steps that are judged together."""
MAX_RARE_SHARE = 0.1
EXCEPTIONAL_RATIO = 3.0
"""Ratio of a rank's slow steps to those of the other ranks from which they are not noise."""
_LASTING_STEPS = 2
_LASTING_LEVEL = math.log(3.0)
"""Least number of consecutive steps, each at least three times as long as usual, that are no noise
even if other ranks have as many: noise is a moment, and a slow time lasts."""
_MIN_SIGMA = 0.02


@dataclass(frozen=True)
class SlowSteps:
    """Slow steps of one series.

    Attributes:
        steps: indices of the steps in the series, ascending.
        level: median log ratio to the usual duration.
        confidence: probability that the true ratio is at least 1.10.
    """

    steps: IntArray
    level: float
    confidence: float


def find_slow_steps(
    logs: FloatArray,
    seconds: FloatArray,
    examined: BoolArray,
    least_s: float,
    *,
    repeated: bool = True,
) -> tuple[tuple[SlowSteps, ...], ...]:
    """Return the slow steps of every rank that take long enough to matter.

    Consecutive slow steps matter if they exceed the usual duration by `least_s` together, and what
    other ranks have of the kind threefold: moments that all ranks have are noise. Two steps in a
    row that take three times as long are no moment. The remaining slow steps of a rank are judged
    together in the same way.

    Args:
        logs: log ratio to the usual duration, [N, W].
        seconds: durations, [N, W].
        examined: mask of the steps to examine; the others are already explained, [N, W].
        least_s: least excess in seconds.
        repeated: whether steps that are not consecutive are judged together. If not, a series in
            which more than a tenth of the steps is slow is unsteady, and has no slow steps.

    Returns:
        For each rank the groups of slow steps, most expensive first.
    """
    relative = logs - _measure_shared_slowness(logs)
    relative[~examined] = 0.0
    ranks = [
        _RankSteps.measure(relative[:, rank], seconds[:, rank], repeated=repeated)
        for rank in range(logs.shape[1])
    ]
    largest, total = (
        EXCEPTIONAL_RATIO * find_upper_quartile_of_others(np.array(values))
        for values in zip(*((each.largest_lost, each.lost.sum()) for each in ranks), strict=True)
    )
    found = []
    for rank, each in enumerate(ranks):
        groups = [
            run
            for run in each.runs
            if each.is_long(run, least_s, 0.0 if each.is_lasting(run) else largest[rank])
        ]
        if repeated:
            groups = _merge_repeated(groups, relative[:, rank])
            chosen = [step for group in groups for step in group.tolist()]
            rest = np.setdiff1d(each.steps, chosen)
            if len(rest) >= MIN_REPEATED and each.is_long(rest, least_s, total[rank]):
                groups.append(rest)
        groups.sort(key=lambda group: -float(seconds[group, rank].sum()))
        found.append(
            tuple(_measure_slow_steps(group, relative[:, rank], each.sigma) for group in groups)
        )
    return tuple(found)


@dataclass(frozen=True)
class _RankSteps:
    """Slow steps of one rank: their indices, [K], and what they lost.

    `excess_s` is in seconds. `lost` is in units of the rank's own usual steps, in which ranks are
    compared: the spikes of a slow rank last longer. `runs` are consecutive slow steps.
    """

    steps: IntArray
    excess_s: FloatArray
    lost: FloatArray
    runs: tuple[IntArray, ...]
    sigma: float

    @classmethod
    def measure(cls, relative: FloatArray, seconds: FloatArray, *, repeated: bool) -> _RankSteps:
        sigma = _estimate_sigma(relative)
        steps = np.flatnonzero(relative >= max(math.log(MIN_RATIO), MIN_Z * sigma))
        if not repeated and len(steps) > max(MAX_RARE_SHARE * len(relative), 1):
            steps = steps[:0]
        borders = np.flatnonzero(np.diff(steps) > 1) + 1
        runs = tuple(np.split(steps, borders)) if len(steps) else ()
        level = relative[steps]
        return cls(steps, seconds[steps] * -np.expm1(-level), np.expm1(level), runs, sigma)

    @property
    def largest_lost(self) -> float:
        return max((self._sum(self.lost, run) for run in self.runs), default=0.0)

    def is_long(self, steps: IntArray, least_s: float, least: float) -> bool:
        """Return whether slow steps exceed the usual duration by so many seconds and steps."""
        return self._sum(self.excess_s, steps) >= least_s and self._sum(self.lost, steps) >= least

    def is_lasting(self, run: IntArray) -> bool:
        """Return whether consecutive steps are slow for longer than a moment."""
        # `lost` is the ratio to the usual duration, less one.
        lost = self.lost[np.searchsorted(self.steps, run)]
        return int((lost >= math.expm1(_LASTING_LEVEL)).sum()) >= _LASTING_STEPS

    def _sum(self, values: FloatArray, steps: IntArray) -> float:
        return float(values[np.searchsorted(self.steps, steps)].sum())


def compute_ratio_confidence(level: float, sigma: float, count: int) -> float:
    """Return the probability that the true ratio of slow steps is at least 1.10.

    Args:
        level: median log ratio.
        sigma: standard deviation from step to step; errors are taken as normal.
        count: number of steps.
    """
    error = max(sigma, _MIN_SIGMA) * math.sqrt(math.pi / 2.0 / count)
    return compute_confidence(level, error)


def _measure_shared_slowness(logs: FloatArray) -> FloatArray:
    """Return the slowness that three quarters of the ranks share in each step, [N, 1]."""
    if logs.shape[1] < 2:
        return np.zeros((len(logs), 1))
    shared = np.quantile(logs, 0.25, axis=1, method="lower")
    return np.asarray(np.maximum(shared, 0.0)[:, None], dtype=np.float64)


def _estimate_sigma(logs: FloatArray) -> float:
    deviation = np.abs(logs - np.median(logs))
    return max(TO_SIGMA * float(np.median(deviation)), _MIN_SIGMA)


def _merge_repeated(runs: list[IntArray], relative: FloatArray) -> list[IntArray]:
    """Merge three or more runs that are about equally slow, such as garbage collections."""
    remaining = sorted(runs, key=lambda run: -float(np.median(relative[run])))
    merged: list[IntArray] = []
    while remaining:
        least = MERGE_RATIO * float(np.median(relative[remaining[0]]))
        alike = [run for run in remaining if float(np.median(relative[run])) >= least]
        remaining = remaining[len(alike) :]
        merged += [np.sort(np.concatenate(alike))] if len(alike) >= MIN_REPEATED else alike
    return merged


def find_upper_quartile_of_others(values: FloatArray) -> FloatArray:
    """Return for each rank the upper quartile of the other ranks' values, [W]; 0 for one rank."""
    if len(values) < 2:
        return np.zeros_like(values)
    ordered = np.sort(values)
    place = -(-3 * (len(values) - 2) // 4)
    # Without a rank, the ranks above it move down by one place.
    without_above, without_below = ordered[place], ordered[place + 1]
    quartiles: FloatArray = np.where(values > without_above, without_above, without_below)
    return quartiles


def _measure_slow_steps(steps: IntArray, relative: FloatArray, sigma: float) -> SlowSteps:
    level = float(np.median(relative[steps]))
    return SlowSteps(steps, level, compute_ratio_confidence(level, sigma, len(steps)))
