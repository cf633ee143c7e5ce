"""Fitted model of an asynchronous run: the makespan that references and causes account for.

See `replay/fitted_parts.py` for its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from laggard.analysis.detection.asynchronous_causes import (
    StackedSteps,
    transfer_s,
    usual_transfer_s,
)
from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.reference import COMPUTE_CODES, References
from laggard.analysis.replay.asynchronous.async_replay import AsyncReplay
from laggard.analysis.replay.asynchronous.step_savings import StepSavings, apply_savings
from laggard.analysis.replay.fitted_parts import (
    classify_slowness,
    compute_levels,
    extract_jitter,
    model_transfers,
    shuffle_alike,
)
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.simulation.step_graph import StepDependencies, StepGraph
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
    savings: list[StepSavings] = []
    for rank, rank_timeline in enumerate(async_replay.rank_timelines):
        seconds = work.seconds[: len(rank_timeline), rank]
        own = [cause for cause in causes if cause.rank == rank]
        kept = _mask_kept_steps(rank_timeline, async_replay.end_s)
        levels = compute_levels(work, references, own, rank)[: len(rank_timeline)]
        saved = seconds - _model_seconds(rank_timeline, seconds, levels, own, keys, kept)
        # A phase's change is divided between before and after the wait as its time was.
        early = np.where(
            seconds > 0, rank_timeline.before / np.where(seconds > 0, seconds, 1.0), 0.0
        )
        before, after = (saved * early).sum(axis=1), (saved * (1.0 - early)).sum(axis=1)
        savings.append(StepSavings(rank, before, after, np.zeros(len(rank_timeline))))
    steps = async_replay.steps
    if isinstance(steps, StepGraph):
        dependencies = tuple(
            _model_lags(
                rank_timeline, steps.dependencies[rank], [c for c in causes if c.rank == rank], keys
            )
            for rank, rank_timeline in enumerate(async_replay.rank_timelines)
        )
        steps = replace(steps, dependencies=dependencies)
    durations = apply_savings(
        async_replay.observed(), savings, removed=np.zeros((1, 0), dtype=np.bool_)
    )
    return float(replace(async_replay, steps=steps).compute_makespans(durations)[0])


def _mask_kept_steps(rank_timeline: RankTimeline, ended_s: float) -> BoolArray:
    """Return a mask of the steps that keep their durations, [N].

    These are warm-up steps, and steps in progress at the end of the training, in which ranks wait
    to be told about the end.
    """
    return np.asarray(rank_timeline.warm_up | (rank_timeline.end_s > ended_s))


def _model_seconds(
    rank_timeline: RankTimeline,
    seconds: FloatArray,
    levels: FloatArray,
    causes: Sequence[Cause],
    keys: FloatArray,
    kept: BoolArray,
) -> FloatArray:
    """Return the modeled seconds of every phase, [N, P]; kept steps have their measured ones.

    Phases that occur only in some steps are redistributed without a change.
    """
    order = shuffle_alike(~kept, rank_timeline.taken, keys)
    jitter = extract_jitter(seconds[:, _LOCAL], levels[:, _LOCAL])
    modeled = seconds[order]
    modeled[:, _LOCAL] = levels[:, _LOCAL] * np.exp(jitter[order])[:, None]
    modeled[:, _COMM] = 0.0
    carrying = np.flatnonzero((seconds[:, _COMM] > 0) & ~kept)
    if len(carrying):
        slowness = (
            np.ones(len(rank_timeline))
            if rank_timeline.is_peer_to_peer
            else _compute_slowness(rank_timeline, causes)
        )
        slowness = slowness[carrying]
        # The samples of a step and its slowness in one integer.
        kinds = rank_timeline.taken[carrying] * (1 << 32) + classify_slowness(slowness)
        every = np.ones(len(carrying), dtype=np.bool_)
        order = shuffle_alike(every, kinds, keys[carrying])
        modeled[carrying, _COMM] = model_transfers(seconds[carrying, _COMM], slowness, order)
    return np.where(kept[:, None], seconds, modeled)


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


def _model_lags(
    rank_timeline: RankTimeline,
    dependencies: Sequence[StepDependencies],
    causes: Sequence[Cause],
    keys: FloatArray,
) -> tuple[StepDependencies, ...]:
    """Return a rank's dependencies with modeled message delays.

    A delay is the usual one between the two ranks, times the slowdown of the causes, times
    redistributed jitter. Dependencies that the rank did not wait for keep their assumed delay.
    """
    usual = _compute_usual_lags_s(rank_timeline, dependencies)
    slowness = (
        _compute_slowness(rank_timeline, causes)
        if rank_timeline.is_peer_to_peer
        else np.ones(len(rank_timeline))
    )
    binding = dict(_find_binding_lags(rank_timeline, dependencies))
    steps = np.array(list(binding), dtype=np.int64)
    jitter = np.array(
        [lag_s / (usual[rank] * slowness[step]) for step, (rank, lag_s) in binding.items()]
    )
    order = shuffle_alike(np.ones(len(steps), dtype=np.bool_), np.zeros_like(steps), keys[steps])
    modeled = list(dependencies)
    for step, factor in zip(steps.tolist(), jitter[order].tolist(), strict=True):
        awaited = binding[step][0]
        lag_s = usual[awaited] * float(slowness[step]) * factor
        modeled[step] = replace(
            modeled[step],
            required=tuple(
                replace(each, lag_s=lag_s) if each.rank == awaited else each
                for each in modeled[step].required
            ),
        )
    return tuple(modeled)


def _find_binding_lags(
    rank_timeline: RankTimeline, dependencies: Sequence[StepDependencies]
) -> Iterator[tuple[int, tuple[int, float]]]:
    """Yield each step whose awaited message had a delay, with the awaited rank and the delay."""
    for step, each in enumerate(dependencies):
        for dependency in each.required:
            if dependency.rank == rank_timeline.awaited[step] and dependency.lag_s > 0:
                yield step, (dependency.rank, dependency.lag_s)


def _compute_usual_lags_s(
    rank_timeline: RankTimeline, dependencies: Sequence[StepDependencies]
) -> dict[int, float]:
    """Return the median lag for each awaited rank."""
    lags: dict[int, list[float]] = {}
    for _, (rank, lag_s) in _find_binding_lags(rank_timeline, dependencies):
        lags.setdefault(rank, []).append(lag_s)
    return {rank: float(np.median(values)) for rank, values in lags.items()}
