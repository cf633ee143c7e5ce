"""What every rank of a run computed, so that another strategy can have it compute the same at other
times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.reference import fit_line
from laggard.analysis.replay.simulation.recorded_durations import (
    RecordedDurations,
    fit_recorded_durations,
)
from laggard.analysis.tables.columns import FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Flag, Lane, Phase

_S = 1e-9
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class TrainingWork:
    """The work of a training.

    Attributes:
        ranks: what a step takes each, without what it sends and waits for.
        samples_per_step: samples of one rank in the steps that were seen, by step number; they are
            repeated behind that.
        goal: samples that all learnt from until the training was over.
        end_s: raw seconds until then, evaluations counted: behind it no time is known to be slow.
    """

    ranks: tuple[RecordedDurations, ...]
    samples_per_step: FloatArray
    goal: float
    end_s: float

    def rank_samples(self, step: int) -> float:
        """Samples of one rank in a step: all have as many."""
        return float(self.samples_per_step[step % len(self.samples_per_step)])

    @property
    def steps(self) -> int:
        """Steps of the whole in which as many samples are learnt from."""
        samples_learned, step = 0.0, 0
        while samples_learned < self.goal * (1.0 - _TOLERANCE):
            samples_learned += self.rank_samples(step) * len(self.ranks)
            step += 1
        return step


def measure_work(run: RunData) -> TrainingWork:
    """Takes the work out of a run.

    Raises:
        RunFolderError: some rank finished no step, or nothing was learnt.
    """
    spans = run.spans
    local = (spans.phase != Phase.COMM.code) & (spans.phase != Phase.EVALUATE.code)
    whole = (spans.flags & Flag.TRUNCATED) == 0
    is_in_training = (spans.lane == Lane.MAIN) & (spans.start_ns >= 0) & (spans.step >= 0)
    spans = spans.where(local & whole & is_in_training & (spans.phase != Phase.CHECKPOINT.code))
    ranks = []
    for host in run.hosts:
        own = spans.where(spans.rank == host.rank)
        if not own.work.any():
            raise RunFolderError(
                f"{run.folder}: {host.host} finished no training step; nothing is known of its"
                " speed"
            )
        ranks.append(_measure_rank(own))
    outcome = run.record.outcome if run.record is not None else None
    goal = (
        outcome.samples_per_s * outcome.makespan_s
        if outcome is not None
        else float(run.steps.samples.sum())
    )
    if not goal > 0:
        raise RunFolderError(
            f"{run.folder}: nothing was learnt from in it, so there is no work to do otherwise"
        )
    return TrainingWork(
        tuple(ranks), _measure_rank_samples(spans), goal, float(run.spans.end_ns.max() * _S)
    )


def _measure_rank(spans: SpanColumns) -> RecordedDurations:
    step, index = np.unique(spans.step, return_inverse=True)
    count = len(step)
    seconds = np.bincount(index, spans.dur_ns * _S, count).astype(np.float64)
    start_s, end_s = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(start_s, index, spans.start_ns * _S)
    samples: IntArray = np.zeros(count, dtype=np.int64)
    np.maximum.at(samples, index, spans.work)
    warm_up = np.zeros(count, dtype=np.bool_)
    warm_up[index[(spans.flags & Flag.WARM_UP) != 0]] = True
    computing = spans.work > 0
    np.maximum.at(end_s, index[computing], spans.end_ns[computing] * _S)
    known = samples > 0
    used = known & (~warm_up if (known & ~warm_up).any() else known)
    fixed_s, sample_s = fit_line(samples[used], seconds[used])
    expected = np.maximum(fixed_s + sample_s * samples, 1e-9)
    order = np.flatnonzero(known)
    return fit_recorded_durations(
        fixed_s, sample_s, start_s[order], end_s[order], (seconds / expected)[order], warm_up[order]
    )


def _measure_rank_samples(spans: SpanColumns) -> FloatArray:
    """Samples of a rank by step number, the mean over the ranks that took it; steps that nobody
    took are as those around them.
    """
    step, rank = spans.step.astype(np.int64), spans.rank.astype(np.int64)
    world, last = int(rank.max()) + 1, int(step.max())
    taken = np.zeros((last + 1, world))
    np.maximum.at(taken, (step, rank), spans.work.astype(np.float64))
    members = (taken > 0).sum(axis=1)
    seen = np.flatnonzero(members)
    means = taken[seen].sum(axis=1) / members[seen]
    samples_per_step: FloatArray = np.interp(np.arange(last + 1), seen, means)
    return samples_per_step
