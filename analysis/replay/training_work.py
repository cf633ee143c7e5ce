"""Compute work of every rank of a run, which a simulation repeats at other times."""

from __future__ import annotations

import numpy as np

from laggard.analysis.detection.reference import fit_line
from laggard.analysis.replay.fitted_durations import fit_recorded_durations
from laggard.analysis.tables.columns import FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import RunFolderError
from laggard.core.simulation.recorded_durations import RecordedDurations
from laggard.core.simulation.training import TrainingWork
from laggard.core.span_schema import Flag, Lane, Phase

_S = 1e-9


def measure_work(run: RunData) -> TrainingWork:
    """Measure the work of a run.

    Raises:
        RunFolderError: some rank finished no step, or no sample was processed.
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
                f"{run.folder}: {host.host} finished no training step, so its speed is unknown —"
                " use a run in which every worker finished at least one step"
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
            f"{run.folder}: the run processed no samples, so there is no work to simulate"
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
    # A run that ended during warm-up has no other steps to fit.
    used = known & (~warm_up if (known & ~warm_up).any() else known)
    fixed_s, sample_s = fit_line(samples[used], seconds[used])
    # The ratio of measured to fitted time carries slowness and jitter.
    expected = np.maximum(fixed_s + sample_s * samples, 1e-9)
    order = np.flatnonzero(known)
    return fit_recorded_durations(
        fixed_s, sample_s, start_s[order], end_s[order], (seconds / expected)[order], warm_up[order]
    )


def _measure_rank_samples(spans: SpanColumns) -> FloatArray:
    """Return the samples of a rank by step number, as the mean over the ranks that took the step.

    Steps that no rank took are interpolated.
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
