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

_LEVEL_ERROR = 1e-9
"""Part of a level by which rounding may have made it too high."""

_EXACT_SOLVERS: tuple[tuple[str, dict[str, float]], ...] = (
    ("highs-ds", {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}),
    ("highs-ds", {}),
)
"""Solvers and their options, of which a later one is asked if an earlier one fails."""

_SMALL_GROWTH = 1e-5
"""Growth that shows that a job can grow, relative to its greatest value."""


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


def maximize_growth(
    state: ClusterState, value: FloatArray, level: FloatArray, weight: FloatArray
) -> float:
    """Return by which multiple of their weights the values of all jobs can grow.

    Args:
        state: the jobs.
        value: value of a job if it always runs on a type, [J, M].
        level: value that each job has already, [J].
        weight: how fast its value grows; 0 for a job that keeps its value, [J].
    """
    from scipy import sparse

    merged = MergedJobs.of(value, state.scale.astype(np.float64), level, weight)
    groups, types = value[merged.first].shape
    rows, limits = _build_limits(state, merged, extra=1)
    least = _build_least(value[merged.first] / merged.size[:, None], weight[merged.first])
    gain = np.r_[np.zeros(groups * types), 1.0]
    kept = level[merged.first] * (1 - _LEVEL_ERROR)
    bounds = np.r_[limits, -kept]
    return float(_solve(gain, sparse.vstack([rows, least]), bounds, exact=True)[-1])


def spread_growth(
    state: ClusterState, value: FloatArray, level: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Have as many jobs as possible grow a little beyond their levels.

    Jobs that can grow one at a time can grow together, each by a part. So with a small bound on
    all growth, the greatest sum has every job at the bound that can grow at all.

    Args:
        state: the jobs.
        value: value of a job if it always runs on a type, [J, M].
        level: value that each job has already, [J].

    Returns:
        An allocation with at least the levels, [J, M], and the growth of each job as a part of the
        bound, [J].
    """
    from scipy import sparse

    merged = MergedJobs.of(value, state.scale.astype(np.float64), level)
    groups, types = value[merged.first].shape
    bound = _SMALL_GROWTH * value[merged.first].max(axis=1)
    rows, limits = _build_limits(state, merged, extra=groups)
    weights = _build_least(value[merged.first] / merged.size[:, None])
    more = sparse.hstack([sparse.csr_matrix(weights)[:, :-1], sparse.diags(bound)])
    kept = level[merged.first] * (1 - _LEVEL_ERROR)
    gain = np.r_[np.zeros(groups * types), merged.size]
    found = _solve(gain, sparse.vstack([rows, more]), np.r_[limits, -kept], most=groups, exact=True)
    allocation = _spread(found[:-groups], merged, types)
    return allocation, found[-groups:][merged.group]


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


def _build_least(values: FloatArray, growth: FloatArray | None = None) -> object:
    """Return rows that keep the last variable at or below the value of every group.

    Args:
        values: value of a group for each variable X, [G, M].
        growth: value for each unit of the last variable that a group must have, [G]; 1 if None.
    """
    from scipy import sparse

    groups, types = values.shape
    at = np.arange(groups * types)
    weights = sparse.csr_matrix((-values.ravel(), (at // types, at)), (groups, groups * types))
    last = np.ones(groups) if growth is None else growth
    return sparse.hstack([weights, sparse.csr_matrix(last[:, None])])


def _solve(
    gain: FloatArray,
    rows: object,
    limits: FloatArray,
    least: float = 0.0,
    most: int = 0,
    *,
    exact: bool = False,
) -> FloatArray:
    """Maximize `gain` times the variables.

    Args:
        gain: weight of each variable.
        rows: rows of the constraints.
        limits: limit of each row.
        least: least value of the last variable.
        most: number of variables, the last ones, that are at most 1.
        exact: whether limits should hold to 1e-10 instead of 1e-7, which takes longer.
    """
    from scipy.optimize import linprog

    bounds = np.zeros((len(gain), 2))
    bounds[:, 1] = np.inf
    bounds[-1, 0] = least
    bounds[len(gain) - most :, 1] = 1.0
    message = ""
    for method, options in (*_EXACT_SOLVERS * exact, ("highs-ipm", {})):
        found = linprog(-gain, rows, limits, bounds=bounds, method=method, options=options)
        if found.status == 0:
            solution: FloatArray = np.clip(found.x, 0.0, None)
            return solution
        message = str(found.message)
    raise LaggardError(f"no allocation was found for {len(gain)} variables: {message}")


def _spread(solution: FloatArray, merged: MergedJobs, types: int) -> FloatArray:
    """Return the allocation of every job from those of the groups, [J, M]."""
    each = solution.reshape(-1, types) / merged.size[:, None]
    return np.minimum(each[merged.group], 1.0)
