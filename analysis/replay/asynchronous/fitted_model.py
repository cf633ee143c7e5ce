"""Fitted model of an asynchronous run: the makespan that references and causes account for.

It is the counterpart of `replay/lockstep/fitted_model.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from laggard.analysis.detection.asynchronous_causes import (
    StackedSteps,
    transfer_s,
    usual_transfer_s,
)
from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import MIN_STEPS, running_mean, running_median
from laggard.analysis.detection.reference import COMPUTE_CODES, References, compute_log_ratio
from laggard.analysis.replay.asynchronous.async_replay import AsyncReplay
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.timelines.rank_timeline import PHASES, RankTimeline
from laggard.core.simulation.step_graph import StepDependencies, StepDurations
from laggard.core.span_schema import Phase

_COMM = Phase.COMM.code
_LOCAL = [Phase.FETCH.code, *COMPUTE_CODES]


def compute_modeled_async_makespan(
    async_replay: AsyncReplay,
    work: StackedSteps,
    references: References,
    causes: Sequence[Cause],
    seed: int,
) -> float:
    """Return the makespan of the fitted model, in virtual seconds.

    The duration of work is its reference times the slowdown of the causes acting on it. Transfers,
    and the delays of messages, have their usual duration. Both are multiplied by redistributed
    jitter. All waits follow from these durations.

    Args:
        async_replay: replay of the run.
        work: steps of all ranks, stacked.
        references: own and class references.
        causes: causes that were found.
        seed: seed of the order in which jitter is redistributed.
    """
    # One key per step number, shared by all ranks: ranks that run in step then get the jitter of
    # the same steps, so that jitter which occurred together stays together.
    keys = np.random.default_rng(seed).random(len(work.samples))
    before, after = [], []
    for rank, rank_timeline in enumerate(async_replay.rank_timelines):
        seconds = work.seconds[: len(rank_timeline), rank]
        own = [cause for cause in causes if cause.rank == rank]
        change = (
            _model_seconds(
                rank_timeline,
                rank,
                work,
                references,
                own,
                keys,
                _mask_kept_steps(rank_timeline, async_replay.end_s),
            )
            - seconds
        )
        # A phase's change is divided between before and after the wait as its time was.
        early = np.where(
            seconds > 0, rank_timeline.before / np.where(seconds > 0, seconds, 1.0), 0.0
        )
        before.append(
            (rank_timeline.ready_s - rank_timeline.start_s + (change * early).sum(axis=1))[None]
        )
        after.append(
            (rank_timeline.end_s - rank_timeline.resume_s + (change * (1.0 - early)).sum(axis=1))[
                None
            ]
        )
    durations = StepDurations(
        tuple(np.maximum(b, 0.0) for b in before), tuple(np.maximum(a, 0.0) for a in after)
    )
    dependencies = tuple(
        _model_lags(async_replay, rank, [c for c in causes if c.rank == rank], keys)
        for rank in range(len(async_replay.rank_timelines))
    )
    return float(
        replace(async_replay, dependencies=dependencies).compute_makespans(
            durations, goal_samples=async_replay.goal_samples()
        )[0]
    )


def _mask_kept_steps(rank_timeline: RankTimeline, ended_s: float) -> BoolArray:
    """Return a mask of the steps that keep their durations, [N].

    These are warm-up steps, and steps in progress at the end of the training, in which ranks wait
    to be told about the end.
    """
    return np.asarray(rank_timeline.warm_up | (rank_timeline.end_s > ended_s))


def _model_seconds(
    rank_timeline: RankTimeline,
    rank: int,
    work: StackedSteps,
    references: References,
    causes: Sequence[Cause],
    keys: FloatArray,
    kept: BoolArray,
) -> FloatArray:
    """Return the modeled seconds of every phase, [N, P]; kept steps have their measured ones.

    Phases that occur only in some steps are redistributed without a change.
    """
    seconds = work.seconds[: len(rank_timeline), rank]
    levels = _compute_levels(rank_timeline, rank, references, causes)
    modeled = seconds[_shuffle_steps(kept, keys, rank_timeline.taken)]
    jitter = _extract_jitter(
        compute_log_ratio(seconds[:, _LOCAL].sum(axis=1), levels[:, _LOCAL].sum(axis=1))
    )
    order = _shuffle_steps(kept, keys, rank_timeline.taken * (1 << 32))
    modeled[:, _LOCAL] = levels[:, _LOCAL] * np.exp(jitter[order])[:, None]
    modeled[:, _COMM] = _model_transfers(rank_timeline, seconds[:, _COMM], causes, keys, kept)
    return np.where(kept[:, None], seconds, modeled)


def _model_transfers(
    rank_timeline: RankTimeline,
    seconds: FloatArray,
    causes: Sequence[Cause],
    keys: FloatArray,
    kept: BoolArray,
) -> FloatArray:
    """Return the modeled seconds of transfers, [N], redistributed among the steps that have any.

    Transfers are often of two kinds: some messages had arrived before the rank asked for them,
    others had not. Therefore the mean is used instead of the median.
    """
    carrying = np.flatnonzero((seconds > 0) & ~kept)
    modeled = np.zeros(len(seconds))
    if not len(carrying):
        return modeled
    slowness = (
        np.ones(len(rank_timeline))
        if rank_timeline.is_peer_to_peer
        else _compute_slowness(rank_timeline, causes)
    )[carrying]
    usual = seconds[carrying] / slowness
    jitter = usual / running_mean(usual, 2 * MIN_STEPS + 1)
    # The samples of a step and its slowness in one integer: only equal pairs exchange jitter.
    kinds = rank_timeline.taken[carrying] * (1 << 32) + np.rint(64 * slowness).astype(np.int64)
    order = _shuffle_steps(np.zeros(len(carrying), dtype=np.bool_), keys[carrying], kinds)
    modeled[carrying] = usual.mean() * slowness * jitter[order]
    return modeled


def _compute_levels(
    rank_timeline: RankTimeline, rank: int, references: References, causes: Sequence[Cause]
) -> FloatArray:
    """Return the durations of work that references and causes alone explain, [N, P]."""
    steps = len(rank_timeline)
    levels = references.device.of_rank(rank, range(PHASES))[:steps]
    for cause in sorted(causes, key=lambda each: each.kind == "dynamic"):
        if cause.spec.uses_links:
            continue
        codes = list(cause.spec.codes)
        usual = references.own.of_rank(rank, codes)[:steps] * np.exp(cause.baseline)
        covered = (
            np.flatnonzero(cause.covers(steps)) if cause.kind == "dynamic" else np.arange(steps)
        )
        levels[np.ix_(covered, np.array(codes))] = usual[covered] * (
            cause.slowdown if cause.kind == "dynamic" else 1.0
        )
    return levels


def _compute_slowness(rank_timeline: RankTimeline, causes: Sequence[Cause]) -> FloatArray:
    """Return the slowdown of transfers that the causes alone explain, [N]."""
    slowness = np.ones(len(rank_timeline))
    for cause in causes:
        if cause.spec.uses_links:
            slowness[cause.first : cause.last + 1] = np.exp(cause.baseline) * cause.slowdown
        if cause.burdens_transfer is not None:
            first, last = cause.burdens_transfer
            seconds = transfer_s(rank_timeline)[first : last + 1]
            slowness[first : last + 1] = np.median(seconds[seconds > 0]) / usual_transfer_s(
                rank_timeline
            )
    return slowness


def _extract_jitter(logs: FloatArray) -> FloatArray:
    """Return a series of logs minus its running median."""
    return logs - running_median(logs, 2 * MIN_STEPS + 1)


def _shuffle_steps(kept: BoolArray, keys: FloatArray, alike: IntArray) -> IntArray:
    """Return for each step a step of the same kind whose jitter it gets, [N].

    Ranks that run in step get the jitter of the same steps.
    """
    order = np.arange(len(kept))
    for size in np.unique(alike):
        same = np.flatnonzero((alike == size) & ~kept)
        order[same] = same[np.argsort(keys[same])]
    return order


def _model_lags(
    async_replay: AsyncReplay, rank: int, causes: Sequence[Cause], keys: FloatArray
) -> tuple[StepDependencies, ...]:
    """Return a rank's dependencies with modeled message delays.

    A delay is the usual one between the two ranks, times the slowdown of the causes, times
    redistributed jitter. Dependencies that the rank did not wait for keep their assumed delay.
    """
    if not async_replay.dependencies[rank]:
        return ()
    rank_timeline, dependencies = async_replay.rank_timelines[rank], async_replay.dependencies[rank]
    usual = _compute_usual_lags_s(async_replay, rank)
    slowness = (
        _compute_slowness(rank_timeline, causes)
        if rank_timeline.is_peer_to_peer
        else np.ones(len(rank_timeline))
    )
    observed = {
        step: dependency.lag_s / (usual[dependency.rank] * slowness[step])
        for step, each in enumerate(dependencies)
        for dependency in each.required
        if dependency.rank == rank_timeline.awaited[step] and dependency.lag_s > 0
    }
    order = sorted(observed, key=lambda step: float(keys[step]))
    shuffled = {step: observed[other] for step, other in zip(observed, order, strict=True)}
    return tuple(
        replace(
            each,
            required=tuple(
                replace(dependency, lag_s=usual[dependency.rank] * slowness[step] * shuffled[step])
                if step in shuffled and dependency.rank == rank_timeline.awaited[step]
                else dependency
                for dependency in each.required
            ),
        )
        for step, each in enumerate(dependencies)
    )


def _compute_usual_lags_s(async_replay: AsyncReplay, rank: int) -> dict[int, float]:
    """Return the median lag for each awaited rank.

    A rank that was never waited for gets the median over the others.
    """
    lags: dict[int, list[float]] = {}
    others = {
        dependency.rank for each in async_replay.dependencies[rank] for dependency in each.required
    }
    for step, each in enumerate(async_replay.dependencies[rank]):
        for dependency in each.required:
            if (
                dependency.rank == async_replay.rank_timelines[rank].awaited[step]
                and dependency.lag_s > 0
            ):
                lags.setdefault(dependency.rank, []).append(dependency.lag_s)
    known = {other: float(np.median(values)) for other, values in lags.items()}
    middle = float(np.median(list(known.values()))) if known else 0.0
    return {other: known.get(other, middle) for other in others}
