"""Policies in which the worst-off job is as well off as possible.

The programs are those of Gavel (D. Narayanan et al., OSDI 2020). Least attained service is
Tiresias's (J. Gu et al., NSDI 2019), finish-time fairness Themis's (K. Mahajan et al., NSDI 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.workloads.scheduling.cluster_jobs import ClusterState
from laggard.workloads.scheduling.linear_program import maximize_least

_RATIO_ERROR = 1e-7
_LEAST_STEP = 1e-6
"""Least difference of a ratio from the one that the past has already made impossible."""


@dataclass(frozen=True)
class LeastAttainedService:
    """Give every job the same time on devices, whatever their types.

    A job gets every type in proportion to its devices, so the times follow in closed form: all
    jobs have the same time, but none has more than all of it.
    """

    name: str = "las"
    aware: bool = False
    in_turn: bool = False

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return the allocation with the same service of all jobs."""
        devices = float(state.counts.sum())
        service = _fill_level(state.scale.astype(np.float64), state.priority, devices)
        part: FloatArray = (service / state.scale)[:, None] * (state.counts / devices)
        return part


def _fill_level(most: FloatArray, weight: FloatArray, total: float) -> FloatArray:
    """Return min(most, level x weight) for the level at which the sum is `total`, [J]."""
    if most.sum() <= total:
        return most
    # Levels at which jobs reach their most; between two of them the sum is a line.
    order = np.argsort(most / weight)
    levels = (most / weight)[order]
    full = np.r_[0.0, np.cumsum(most[order])[:-1]]
    growing = np.cumsum(weight[order][::-1])[::-1]
    reached = full + levels * growing
    at = int(np.searchsorted(reached, total))
    level = (total - full[at]) / growing[at]
    filled: FloatArray = np.minimum(most, level * weight)
    return filled


@dataclass(frozen=True)
class MaxMinFairness:
    """Maximize the least throughput, relative to a part of every type for each job."""

    name: str = "max_min_fairness"
    aware: bool = True
    in_turn: bool = False

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return the allocation with the greatest least normalized throughput."""
        weight = state.scale / (state.priority * state.proportional_throughput)
        return maximize_least(state, state.throughput * weight[:, None])[1]


@dataclass(frozen=True)
class FinishTimeFairness:
    """Minimize the worst ratio of a job's time to its time on an equal part of the cluster."""

    name: str = "finish_time_fairness"
    aware: bool = True
    in_turn: bool = False

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return the allocation with the least worst ratio."""
        return minimize_finish_time_ratio(state)[1]


def minimize_finish_time_ratio(state: ClusterState) -> tuple[float, FloatArray]:
    """Return the least worst finish-time ratio of the jobs, and an allocation with it, [J, M].

    A ratio is possible if every job can have the speed that ends it within this ratio times its
    isolated time. The program of a ratio says by which factor all speeds miss or exceed that, and
    the least possible ratio is where the factor is one.
    """
    from scipy.optimize import brentq

    isolated_s = state.isolated_s + state.steps_left / state.isolated_throughput

    def need(ratio: float) -> FloatArray:
        speeds: FloatArray = state.steps_left / (ratio * isolated_s - state.present_s)
        return speeds

    def exceed(ratio: float, *, fill: bool = False) -> tuple[float, FloatArray]:
        return maximize_least(state, state.throughput / need(ratio)[:, None], fill=fill)

    least = float((state.present_s / isolated_s).max())
    low, high = least + _LEAST_STEP, max(2.0 * least, 1.0)
    while exceed(high)[0] < 1.0:
        low, high = high, 2.0 * high
    if exceed(low)[0] < 1.0:
        found = brentq(lambda each: np.log(exceed(each)[0]), low, high, rtol=_RATIO_ERROR)
        ratio = float(found)
    else:
        ratio = low
    return ratio, exceed(ratio, fill=True)[1]
