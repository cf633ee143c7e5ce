"""ByteDance's slowdowns: a second reference beside our own, to compare with what was published.

J. Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025: T
is the time of a job whose launch gaps are dropped; in the ideal one every operation takes what its
type takes on average, the mean for compute and the median for communication's transfer, over all
workers and steps. S = T / T_ideal; S_t and S_w are the same of a job in which all but one type, or
one worker, is ideal; M_W is the part of the loss that making the slowest 3 % of the workers ideal
would save. Where our reference is the fastest class of hosts, theirs is the average of all: a slow
majority is usual to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from laggard.analysis.formats.bytedance.operations import COMMUNICATION_TYPES, Operations, OpType
from laggard.analysis.replay.bytedance.operation_replay import (
    OperationDependencies,
    read_dependencies,
)
from laggard.analysis.tables.columns import BoolArray, FloatArray

SLOWEST_SHARE = 0.03
_MERGED_TYPES = {
    OpType.FORWARD_SEND: "forward-pp-comm",
    OpType.FORWARD_RECV: "forward-pp-comm",
    OpType.BACKWARD_SEND: "backward-pp-comm",
    OpType.BACKWARD_RECV: "backward-pp-comm",
}


@dataclass(frozen=True)
class Slowdowns:
    """Slowdowns of a job; 1 is no loss.

    Attributes:
        step_s: mean step as recorded, launch gaps dropped (T), in seconds.
        ideal_step_s: the same with ideal durations.
        by_type: S_t by type of operation; sends and receives of one direction are one type.
        by_dp_rank: S of each data-parallel rank.
        by_stage: S of each stage.
        by_worker: S_w by (data-parallel rank, stage): the lesser of the two.
        by_step: S of each step.
        slowest_workers_share: M_W; None where nothing is lost.
    """

    step_s: float
    ideal_step_s: float
    by_type: Mapping[str, float]
    by_dp_rank: Mapping[int, float]
    by_stage: Mapping[int, float]
    by_worker: Mapping[tuple[int, int], float]
    by_step: Mapping[int, float]
    slowest_workers_share: float | None

    @property
    def slowdown(self) -> float:
        """S."""
        return self.step_s / self.ideal_step_s

    def to_document(self) -> dict[str, object]:
        """As JSON."""
        workers = [
            {"dp_rank": dp, "stage": stage, "s_w": s} for (dp, stage), s in self.by_worker.items()
        ]
        return {
            "s": self.slowdown,
            "step_s": self.step_s,
            "ideal_step_s": self.ideal_step_s,
            "m_w": self.slowest_workers_share,
            "s_t": dict(self.by_type),
            "s_w": workers,
            "s_dp_rank": {str(dp): s for dp, s in self.by_dp_rank.items()},
            "s_stage": {str(stage): s for stage, s in self.by_stage.items()},
            "s_step": {str(step): s for step, s in self.by_step.items()},
        }


def compute_slowdowns(operations: Operations) -> Slowdowns:
    """The slowdowns of a job.

    Args:
        operations: of every worker in every step the same.

    Returns:
        S, S_t, S_w and M_W.

    Raises:
        RunFolderError: the dependencies of the operations cannot be told.
    """
    dependencies = read_dependencies(operations)
    measured = dependencies.durations(operations)
    ideal = compute_ideal_durations(dependencies, measured)
    steps = np.unique(operations.step)
    step_s, ideal_s = dependencies.step_seconds(measured), dependencies.step_seconds(ideal)
    worst = float(ideal_s.mean())

    def only(chosen: BoolArray) -> float:
        """Slowdown with the chosen operations, [N, 1, D], as they were and all others ideal."""
        return float(dependencies.step_seconds(np.where(chosen, measured, ideal)).mean()) / worst

    types = np.array(
        [_MERGED_TYPES.get(node.optype, node.optype.value) for node in dependencies.nodes]
    )
    stage = np.array([node.stage for node in dependencies.nodes])
    dp = np.arange(measured.shape[2])
    of_dp = {int(rank): only((dp == rank)[None, None, :]) for rank in dp}
    of_stage = {int(s): only((stage == s)[:, None, None]) for s in np.unique(stage)}
    by_worker = {(rank, s): min(of_dp[rank], of_stage[s]) for rank in of_dp for s in of_stage}
    return Slowdowns(
        step_s=float(step_s.mean()),
        ideal_step_s=worst,
        by_type={str(name): only((types == name)[:, None, None]) for name in np.unique(types)},
        by_dp_rank=of_dp,
        by_stage=of_stage,
        by_worker=by_worker,
        by_step=dict(zip(steps.tolist(), (step_s / ideal_s).tolist(), strict=True)),
        slowest_workers_share=_compute_slowest_workers_share(
            dependencies, measured, ideal, by_worker
        ),
    )


def compute_ideal_durations(
    dependencies: OperationDependencies, measured: FloatArray
) -> FloatArray:
    """What every operation would take in the ideal job, [N, S, D] seconds.

    Args:
        dependencies: whose nodes name the types.
        measured: durations and transfers as recorded, [N, S, D] seconds.
    """
    ideal = np.empty_like(measured)
    optypes = [node.optype for node in dependencies.nodes]
    for optype in set(optypes):
        same = [n for n, own in enumerate(optypes) if own is optype]
        ideal[same] = (
            np.median(measured[same]) if optype in COMMUNICATION_TYPES else np.mean(measured[same])
        )
    return ideal


def _compute_slowest_workers_share(
    dependencies: OperationDependencies,
    measured: FloatArray,
    ideal: FloatArray,
    by_worker: Mapping[tuple[int, int], float],
) -> float | None:
    """M_W: what making the slowest workers ideal saves, of what is lost in all."""
    most = math.ceil(SLOWEST_SHARE * len(by_worker))
    slowest = sorted(by_worker, key=lambda worker: (-by_worker[worker], worker))[:most]
    stage = np.array([node.stage for node in dependencies.nodes])
    fixed = np.zeros(measured.shape, dtype=np.bool_)
    for dp, s in slowest:
        fixed[stage == s, :, dp] = True
    measured_s, best = (
        float(dependencies.step_seconds(values).mean()) for values in (measured, ideal)
    )
    improved_s = float(dependencies.step_seconds(np.where(fixed, ideal, measured)).mean())
    return (measured_s - improved_s) / (measured_s - best) if measured_s > best else None
