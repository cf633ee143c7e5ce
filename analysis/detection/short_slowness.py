"""Slow steps that are too few for an interval, but so slow that they cost 1 % of the makespan.

A link that loses everything for three seconds may slow down a single step, and garbage collection
a step in twenty. Ranks are compared with one another in the same step, because a step in which
most ranks are slow is a longer step and not the fault of a rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.intervals import MERGE_RATIO, MIN_RATIO, MIN_Z
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray

MIN_REPEATED = 3
"""Least number of slow steps that are judged together."""
MAX_RARE_SHARE = 0.1
EXCEPTIONAL_RATIO = 3.0
"""Ratio of a rank's slow steps to those of the other ranks from which they are not noise."""
_TO_SIGMA = 1.4826
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
    other ranks have of the kind threefold: moments that all ranks have are noise. The remaining
    slow steps of a rank are judged together in the same way.

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
    relative = np.where(examined, logs - _measure_shared_slowness(logs), 0.0)
    sigmas = np.array([_estimate_sigma(column) for column in relative.T])
    slow = relative >= np.maximum(math.log(MIN_RATIO), MIN_Z * sigmas)
    if not repeated:
        slow &= slow.sum(axis=0) <= max(MAX_RARE_SHARE * len(slow), 1)
    excess = np.where(slow, seconds * (1.0 - np.exp(-relative)), 0.0)
    # Ranks are compared in units of their own usual steps, since a slow rank's spikes are longer.
    lost = np.where(slow, np.expm1(relative), 0.0)
    runs = [list(_split_runs(column)) for column in slow.T]
    largest = np.array(
        [max((lost[run, r].sum() for run in own), default=0.0) for r, own in enumerate(runs)]
    )
    totals = lost.sum(axis=0)
    found = []
    for rank, own in enumerate(runs):
        least = EXCEPTIONAL_RATIO * _measure_upper_quartile_of_others(largest, rank)
        groups = [
            run
            for run in own
            if excess[run, rank].sum() >= least_s and lost[run, rank].sum() >= least
        ]
        if repeated:
            groups = _merge_repeated(groups, relative[:, rank])
            rest = slow[:, rank].copy()
            rest[[step for group in groups for step in group]] = False
            least = EXCEPTIONAL_RATIO * _measure_upper_quartile_of_others(totals, rank)
            is_long = excess[rest, rank].sum() >= least_s and lost[rest, rank].sum() >= least
            if rest.sum() >= MIN_REPEATED and is_long:
                groups.append(np.flatnonzero(rest))
        groups.sort(key=lambda group: -excess[group, rank].sum())
        found.append(
            tuple(_measure_slow_steps(group, relative[:, rank], sigmas[rank]) for group in groups)
        )
    return tuple(found)


def compute_ratio_confidence(level: float, sigma: float, count: int) -> float:
    """Return the probability that the true ratio of slow steps is at least 1.10.

    Args:
        level: median log ratio.
        sigma: standard deviation from step to step; errors are taken as normal.
        count: number of steps.
    """
    error = max(sigma, _MIN_SIGMA) * math.sqrt(math.pi / 2.0 / count)
    return 0.5 * (1.0 + math.erf((level - math.log(MIN_RATIO)) / error / math.sqrt(2.0)))


def _measure_shared_slowness(logs: FloatArray) -> FloatArray:
    """Return the slowness that three quarters of the ranks share in each step, [N, 1]."""
    if logs.shape[1] < 2:
        return np.zeros((len(logs), 1))
    shared = np.quantile(logs, 0.25, axis=1, method="lower")
    return np.asarray(np.maximum(shared, 0.0)[:, None], dtype=np.float64)


def _estimate_sigma(logs: FloatArray) -> float:
    deviation = np.abs(logs - np.median(logs))
    return max(_TO_SIGMA * float(np.median(deviation)), _MIN_SIGMA)


def _split_runs(slow: BoolArray) -> Iterator[IntArray]:
    """Yield the runs of consecutive slow steps."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], slow, [False]]).astype(np.int8)))
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield np.arange(begin, end)


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


def _measure_upper_quartile_of_others(lost: FloatArray, rank: int) -> float:
    """Return the upper quartile of what the other ranks lost."""
    rest = np.delete(lost, rank)
    return float(np.quantile(rest, 0.75, method="higher")) if len(rest) else 0.0


def _measure_slow_steps(steps: IntArray, relative: FloatArray, sigma: float) -> SlowSteps:
    level = float(np.median(relative[steps]))
    return SlowSteps(steps, level, compute_ratio_confidence(level, sigma, len(steps)))
