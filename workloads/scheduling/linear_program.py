"""Linear programs over the time that jobs have on types of devices.

A variable X[j, m] is the part of the time that job j runs on type m. A job runs on one type at a
time, and all jobs together use no more devices of a type than it has. Equal jobs are one variable
of their sum, since an optimum can give them equal parts. (D. Narayanan et al.,
*Heterogeneity-aware cluster scheduling policies for deep learning workloads*, OSDI 2020.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray, IntArray
from laggard.core.errors import LaggardError
from laggard.workloads.scheduling.cluster_jobs import ClusterState


@dataclass(frozen=True)
class MergedJobs:
    """Groups of jobs that are equal for a program.

    Attributes:
        first: index of the first job of each group, [G].
        group: group of each job, [J].
        size: jobs of each group, [G].
    """

    first: IntArray
    group: IntArray
    size: FloatArray

    @classmethod
    def of(cls, *features: FloatArray) -> MergedJobs:
        """Group jobs whose features, [J] or [J, K] each, are equal."""
        table = np.column_stack(features)
        _, first, group, size = np.unique(
            table, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        return cls(first, group.reshape(-1), size.astype(np.float64))


def maximize_least(
    state: ClusterState, value: FloatArray, *, fill: bool = True
) -> tuple[float, FloatArray]:
    """Maximize the least value of a job.

    Args:
        state: the jobs.
        value: value of a job if it always runs on a type, [J, M].
        fill: whether jobs may have more than the least value.

    Returns:
        The least value, and an allocation with it, [J, M]: of all such allocations one in which
        the sum of all values is greatest, or one in which all values are the least.
    """
    merged = MergedJobs.of(value, state.scale.astype(np.float64))
    groups, types = value[merged.first].shape
    values = value[merged.first] / merged.size[:, None]
    # Variables are X of every group and type, then the least value.
    gain = np.zeros(groups * types + 1)
    gain[-1] = 1.0
    rows, limits = _build_limits(state, merged, extra=1)
    least = _build_least(values)
    from scipy import sparse

    found = _solve(gain, sparse.vstack([rows, least]), np.r_[limits, np.zeros(groups)])
    bound = float(found[-1])
    if not fill:
        reached = (values * found[:-1].reshape(groups, types)).sum(axis=1)
        part = np.divide(bound, reached, out=np.zeros(groups), where=reached > 0)
        return bound, _spread((found[:-1].reshape(groups, types) * part[:, None]), merged, types)
    # Most allocations with this least value leave devices idle that other jobs could use.
    sums = np.r_[values.ravel(), 0.0]
    fixed = np.r_[limits, np.zeros(groups)]
    slack = bound * (1 - 1e-7)
    best = _solve(sums, sparse.vstack([rows, least]), fixed, least=slack)
    return bound, _spread(best[:-1], merged, types)


def maximize_sum(state: ClusterState, value: FloatArray) -> FloatArray:
    """Return an allocation, [J, M], in which the sum of all values, [J, M], is greatest."""
    merged = MergedJobs.of(value, state.scale.astype(np.float64))
    rows, limits = _build_limits(state, merged, extra=0)
    found = _solve(value[merged.first].ravel(), rows, limits)
    return _spread(found, merged, value.shape[1])


def _build_limits(state: ClusterState, merged: MergedJobs, extra: int) -> tuple[object, FloatArray]:
    """Return rows and limits: the time of each group, and the devices of each type."""
    from scipy import sparse

    groups, types = len(merged.first), len(state.counts)
    scale = state.scale[merged.first].astype(np.float64)
    time = sparse.kron(sparse.eye(groups), np.ones((1, types)))
    devices = sparse.kron(scale[None, :], sparse.eye(types))
    rows = sparse.vstack([time, devices])
    if extra:
        rows = sparse.hstack([rows, sparse.csr_matrix((groups + types, extra))])
    return rows, np.r_[merged.size, state.counts.astype(np.float64)]


def _build_least(values: FloatArray) -> object:
    """Return rows that keep the last variable at or below the value of every group."""
    from scipy import sparse

    groups, types = values.shape
    at = np.arange(groups * types)
    weights = sparse.csr_matrix((-values.ravel(), (at // types, at)), (groups, groups * types))
    return sparse.hstack([weights, np.ones((groups, 1))])


def _solve(gain: FloatArray, rows: object, limits: FloatArray, least: float = 0.0) -> FloatArray:
    """Maximize `gain` times the variables, of which the last is at least `least`."""
    from scipy.optimize import linprog

    bounds = np.zeros((len(gain), 2))
    bounds[:, 1] = np.inf
    bounds[-1, 0] = least
    found = linprog(-gain, A_ub=rows, b_ub=limits, bounds=bounds, method="highs-ipm")
    if found.status != 0:
        raise LaggardError(f"no allocation was found for {len(gain)} variables: {found.message}")
    solution: FloatArray = np.clip(found.x, 0.0, None)
    return solution


def _spread(solution: FloatArray, merged: MergedJobs, types: int) -> FloatArray:
    """Return the allocation of every job from those of the groups, [J, M]."""
    each = solution.reshape(-1, types) / merged.size[:, None]
    return np.minimum(each[merged.group], 1.0)
