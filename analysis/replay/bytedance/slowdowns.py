"""ByteDance's slowdown metrics, a second reference to compare with published results.

The definitions are those of J. Lin et al., Understanding Stragglers in Large Model Training Using
What-if Analysis, OSDI 2025. T is the duration of a job without its launch gaps. In the ideal job,
every operation takes the average duration of its type over all workers and steps: the mean for
compute, the median for the transfers of communication. S = T / T_ideal. S_t and S_w are the same
ratio for a job in which all operations but those of one type, or of one worker, are ideal. M_W is
the part of the loss that would be saved if the slowest 3 % of the workers were ideal. Laggard's
own reference is the fastest class of hosts; theirs is the average of all, so a slow majority
counts as usual.
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
    """Slowdowns of a job; 1 means no loss.

    Attributes:
        step_s: mean recorded step without launch gaps (T), in seconds.
        ideal_step_s: mean step with ideal durations, in seconds.
        by_type: S_t for each type of operation; sends and receives of one direction are one type.
        by_dp_rank: S for each data-parallel rank.
        by_stage: S for each stage.
        by_worker: S_w for each (data-parallel rank, stage): the smaller of their two S.
        by_step: S for each step.
        slowest_workers_share: M_W; None if no time is lost.
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
        """Return S, the slowdown of the whole job."""
        return self.step_s / self.ideal_step_s

    def to_document(self) -> dict[str, object]:
        """Return the slowdowns as a JSON document."""
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
    """Compute the slowdowns of a job.

    Args:
        operations: operations of a job whose workers have the same operations in every step.

    Returns:
        S, S_t, S_w and M_W.

    Raises:
        RunFolderError: the dependencies of the operations cannot be derived.
    """
    dependencies = read_dependencies(operations)
    measured = dependencies.durations(operations)
    ideal = compute_ideal_durations(dependencies, measured)
    steps = np.unique(operations.step)
    step_s, ideal_s = dependencies.step_seconds(measured), dependencies.step_seconds(ideal)
    # Despite its name this is T_ideal, the denominator of every slowdown.
    worst = float(ideal_s.mean())

    def only(chosen: BoolArray) -> float:
        """Return the slowdown if only the chosen operations, [N, 1, D], keep their duration."""
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
    """Return the duration of every operation in the ideal job, [N, S, D] seconds.

    Args:
        dependencies: source of the operations' types.
        measured: recorded durations and transfers, [N, S, D] seconds.
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
    """Return M_W: the share of the loss that ideal durations of the slowest workers save."""
    # Rounded up, so that small jobs have at least one slowest worker.
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
