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

from laggard.analysis.columns import BoolArray, FloatArray
from laggard.analysis.formats.operations import COMMUNICATES, Operations, OpType
from laggard.analysis.replay.operations import Dependencies, read_dependencies

SLOWEST_SHARE = 0.03
_MERGED = {
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
        of_types: S_t by type of operation; sends and receives of one direction are one type.
        of_dp_ranks: S of each data-parallel rank.
        of_stages: S of each stage.
        of_workers: S_w by (data-parallel rank, stage): the lesser of the two.
        of_steps: S of each step.
        slowest_explain: M_W; None where nothing is lost.
    """

    step_s: float
    ideal_step_s: float
    of_types: Mapping[str, float]
    of_dp_ranks: Mapping[int, float]
    of_stages: Mapping[int, float]
    of_workers: Mapping[tuple[int, int], float]
    of_steps: Mapping[int, float]
    slowest_explain: float | None

    @property
    def slowdown(self) -> float:
        """S."""
        return self.step_s / self.ideal_step_s

    def document(self) -> dict[str, object]:
        """As JSON."""
        workers = [
            {"dp_rank": dp, "stage": stage, "s_w": s} for (dp, stage), s in self.of_workers.items()
        ]
        return {
            "s": self.slowdown,
            "step_s": self.step_s,
            "ideal_step_s": self.ideal_step_s,
            "m_w": self.slowest_explain,
            "s_t": dict(self.of_types),
            "s_w": workers,
            "s_dp_rank": {str(dp): s for dp, s in self.of_dp_ranks.items()},
            "s_stage": {str(stage): s for stage, s in self.of_stages.items()},
            "s_step": {str(step): s for step, s in self.of_steps.items()},
        }


def slowdowns(operations: Operations) -> Slowdowns:
    """The slowdowns of a job.

    Args:
        operations: of every worker in every step the same.

    Returns:
        S, S_t, S_w and M_W.

    Raises:
        RunFolderError: the dependencies of the operations cannot be told.
    """
    dependencies = read_dependencies(operations)
    taken = dependencies.durations(operations)
    ideal = ideal_durations(dependencies, taken)
    steps = np.unique(operations.step)
    step_s, ideal_s = dependencies.step_seconds(taken), dependencies.step_seconds(ideal)
    worst = float(ideal_s.mean())

    def only(chosen: BoolArray) -> float:
        """Slowdown with the chosen operations, [N, 1, D], as they were and all others ideal."""
        return float(dependencies.step_seconds(np.where(chosen, taken, ideal)).mean()) / worst

    types = np.array([_MERGED.get(node.optype, node.optype.value) for node in dependencies.nodes])
    stage = np.array([node.stage for node in dependencies.nodes])
    dp = np.arange(taken.shape[2])
    of_dp = {int(rank): only((dp == rank)[None, None, :]) for rank in dp}
    of_stage = {int(s): only((stage == s)[:, None, None]) for s in np.unique(stage)}
    of_workers = {(rank, s): min(of_dp[rank], of_stage[s]) for rank in of_dp for s in of_stage}
    return Slowdowns(
        step_s=float(step_s.mean()),
        ideal_step_s=worst,
        of_types={str(name): only((types == name)[:, None, None]) for name in np.unique(types)},
        of_dp_ranks=of_dp,
        of_stages=of_stage,
        of_workers=of_workers,
        of_steps=dict(zip(steps.tolist(), (step_s / ideal_s).tolist(), strict=True)),
        slowest_explain=_slowest_explain(dependencies, taken, ideal, of_workers),
    )


def ideal_durations(dependencies: Dependencies, taken: FloatArray) -> FloatArray:
    """What every operation would take in the ideal job, [N, S, D] seconds.

    Args:
        dependencies: whose nodes name the types.
        taken: durations and transfers as recorded, [N, S, D] seconds.
    """
    ideal = np.empty_like(taken)
    optypes = [node.optype for node in dependencies.nodes]
    for optype in set(optypes):
        same = [n for n, own in enumerate(optypes) if own is optype]
        ideal[same] = np.median(taken[same]) if optype in COMMUNICATES else np.mean(taken[same])
    return ideal


def _slowest_explain(
    dependencies: Dependencies,
    taken: FloatArray,
    ideal: FloatArray,
    of_workers: Mapping[tuple[int, int], float],
) -> float | None:
    """M_W: what making the slowest workers ideal saves, of what is lost in all."""
    most = math.ceil(SLOWEST_SHARE * len(of_workers))
    slowest = sorted(of_workers, key=lambda worker: (-of_workers[worker], worker))[:most]
    stage = np.array([node.stage for node in dependencies.nodes])
    fixed = np.zeros(taken.shape, dtype=np.bool_)
    for dp, s in slowest:
        fixed[stage == s, :, dp] = True
    as_was, best = (float(dependencies.step_seconds(values).mean()) for values in (taken, ideal))
    mended = float(dependencies.step_seconds(np.where(fixed, ideal, taken)).mean())
    return (as_was - mended) / (as_was - best) if as_was > best else None
