"""Fitted model of a run in lockstep: the makespan that references and found causes account for.

See `replay/fitted_parts.py` for its parts. The jitter of transfers is redistributed among the steps
that have transfers. Warm-up steps keep their durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.reference import References
from laggard.analysis.detection.transfers import Transfers
from laggard.analysis.replay.fitted_parts import (
    classify_slowness,
    compute_levels,
    extract_jitter,
    model_transfers,
)
from laggard.analysis.replay.lockstep.slow_sends import COMM, measure_slow_sends
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.simulation.maxplus import Schedule, compute_makespan


def compute_modeled_makespan(
    timeline: Timeline,
    references: References,
    transfers: Transfers,
    causes: Sequence[Cause],
    observed: Schedule,
    seed: int,
) -> float:
    """Return the makespan of the fitted model, in virtual seconds.

    Args:
        timeline: barriers and work of the run.
        references: own and class references.
        transfers: collectives compared with their usual durations.
        causes: causes that were found.
        observed: measured schedule; the model has the same barriers.
        seed: seed of the order in which jitter is redistributed.

    Returns:
        Seconds, to be compared with `timeline.compute_makespan`.
    """
    rng = np.random.default_rng(seed)
    order = _shuffle_steps(timeline, rng)
    local = _model_local_work(timeline, references, causes, order, observed.local)
    factor = _model_transfer_factor(timeline, transfers, causes, order)
    return compute_makespan(replace(observed, local=local), np.append(factor, 1.0))


def _compute_rank_levels(
    timeline: Timeline, references: References, causes: Sequence[Cause], rank: int
) -> FloatArray:
    """Return what references and causes explain of a rank's work and individual sends, [S, P]."""
    levels, seconds = compute_levels(timeline, references, causes, rank), timeline.of_rank(rank)
    for cause in causes:
        if cause.rank is None and cause.kind == "dynamic":
            slow = measure_slow_sends(timeline, rank, cause)
            if slow is not None:
                levels[slow.steps, COMM] *= slow.slowdown
    return np.where(timeline.warm_up[:, None] | (seconds == 0), seconds, levels)


def _shuffle_steps(timeline: Timeline, rng: np.random.Generator) -> IntArray:
    """Return for each step the step whose jitter it gets, [S], with the same number of samples."""
    order = np.arange(len(timeline.steps))
    usable = ~timeline.warm_up
    for size in np.unique(timeline.samples[:, 0]):
        same = np.flatnonzero(usable & (timeline.samples[:, 0] == size))
        order[same] = rng.permutation(same)
    return order


def _model_local_work(
    timeline: Timeline,
    references: References,
    causes: Sequence[Cause],
    order: IntArray,
    observed: FloatArray,
) -> FloatArray:
    """Return the modeled work before each barrier, [E + 1, W].

    Unrecorded time between spans is kept as measured.
    """
    modeled = observed.copy()
    for rank in range(observed.shape[1]):
        seconds = timeline.of_rank(rank)
        levels = _compute_rank_levels(timeline, references, causes, rank)
        jitter = extract_jitter(seconds, levels)
        jitter[timeline.warm_up] = 0.0
        scale = np.where(seconds > 0, levels / np.where(seconds > 0, seconds, 1.0), 1.0)
        scale *= np.exp(jitter[order])[:, None]
        modeled[:, rank] += timeline.work_before_barriers(rank, scale - 1.0)
    return np.maximum(modeled, 0.0, out=modeled)


def _model_transfer_factor(
    timeline: Timeline, transfers: Transfers, causes: Sequence[Cause], order: IntArray
) -> FloatArray:
    """Return the ratio of modeled to observed transfer at each barrier, [E]."""
    ratios = np.exp(transfers.step_logs)
    slowness = _compute_transfer_slowness(transfers, causes)
    is_transferring = transfers.has_transfers & ~timeline.warm_up
    expected = np.where(is_transferring, transfers.step_seconds, 1.0) / ratios
    # Transfers of one kind have about the same usual duration, within an eighth of an octave. A
    # collective within a tier and one of all ranks are of two kinds, for example.
    transfer_kinds = np.rint(8 * np.log2(expected))
    for kind in np.unique(transfer_kinds[is_transferring]):
        at = np.flatnonzero(is_transferring & (transfer_kinds == kind))
        classes, places = classify_slowness(slowness[at]), np.arange(len(at))
        for slow in np.unique(classes):
            # The same order as for the work, so that jitter of work and transfer which occurred in
            # one step stays in one step.
            alike = np.flatnonzero(classes == slow)
            places[alike] = alike[np.argsort(np.argsort(order[at[alike]]))]
        ratios[at] = model_transfers(ratios[at], slowness[at], places)
    modeled = transfers.expected * ratios[timeline.barrier_step]
    known = (transfers.seconds > 0) & ~timeline.pause & ~timeline.warm_up[timeline.barrier_step]
    return np.where(known, modeled / np.where(known, transfers.seconds, 1.0), 1.0)


def _compute_transfer_slowness(transfers: Transfers, causes: Sequence[Cause]) -> FloatArray:
    """Return the slowdown of each step's transfers that the causes alone explain, [S]."""
    logs = np.zeros(len(transfers.step_logs))
    for cause in causes:
        if cause.rank is None and cause.kind == "dynamic":
            logs[cause.first : cause.last + 1] = cause.baseline + np.log(cause.slowdown)
        if cause.burdens_transfer is not None:
            first, last = cause.burdens_transfer
            within = np.s_[first : last + 1]
            is_transferring = transfers.step_logs[within][transfers.has_transfers[within]]
            logs[within] = float(np.median(is_transferring)) if len(is_transferring) else 0.0
    slowness: FloatArray = np.exp(logs)
    return slowness
