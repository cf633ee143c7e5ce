"""The run that references and found causes alone account for.

Every duration is its reference, times the slowdown of the causes acting on it, times jitter:
fluctuation shorter than a slow interval can be. Jitter is fitted (what is left of a duration about
its own running median) and dealt out anew, whole steps at a time, so that no observed duration is
at its place; slow drift, and slow intervals that were not found, stay unexplained. Transfers are
dealt out among steps that have any, about their mean: where ranks meet seldom, links as often as
not are of two speeds, and no median is in between. Warm-up steps enter as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from laggard.analysis.causes import FAMILY_CODES, Cause
from laggard.analysis.columns import FloatArray, IntArray
from laggard.analysis.intervals import LEAST_STEPS, running_mean, running_median
from laggard.analysis.reference import References, log_ratio
from laggard.analysis.replay.cells import PHASES
from laggard.analysis.replay.maxplus import Schedule, makespan
from laggard.analysis.replay.sending import COMM, slow_sending
from laggard.analysis.replay.timeline import Timeline
from laggard.analysis.transfers import Transfers


def modelled_makespan(
    timeline: Timeline,
    references: References,
    transfers: Transfers,
    causes: Sequence[Cause],
    observed: Schedule,
    seed: int,
) -> float:
    """Makespan of the fitted model, in virtual seconds.

    Args:
        timeline: the run.
        references: own and class references.
        transfers: the collectives against their usual.
        causes: the causes found.
        observed: the measured schedule, whose barriers the model shares.
        seed: of the order in which jitter is dealt out.

    Returns:
        Seconds, to be compared with `timeline.makespan`.
    """
    rng = np.random.default_rng(seed)
    order = _deal(timeline, rng)
    local = _local(timeline, references, causes, order, observed.local)
    factor = _transfer_factor(timeline, transfers, causes, order)
    return makespan(replace(observed, local=local), np.append(factor, 1.0))


def _levels(
    timeline: Timeline, references: References, causes: Sequence[Cause], rank: int
) -> FloatArray:
    """Reference times slowdown of a rank, [S, P]."""
    levels = references.device.of_rank(rank, range(PHASES))
    own = [cause for cause in causes if cause.rank == rank]
    for cause in sorted(own, key=lambda each: each.kind == "dynamic"):
        codes = list(FAMILY_CODES[cause.family])
        usual = references.own.of_rank(rank, codes) * np.exp(cause.baseline)
        if cause.kind == "deterministic":
            levels[:, codes] = usual
        else:
            inside = np.s_[cause.first : cause.last + 1]
            levels[inside, codes] = usual[inside] * cause.slowdown
    for cause in causes:
        if cause.rank is None and cause.kind == "dynamic":
            slow = slow_sending(timeline, rank, cause)
            if slow is not None:
                levels[slow.steps, COMM] *= slow.slowdown
    seconds = timeline.of_rank(rank)
    return np.where(timeline.warm_up[:, None] | (seconds == 0), seconds, levels)


def _deal(timeline: Timeline, rng: np.random.Generator) -> IntArray:
    """For each step the step whose jitter it gets: another with as many samples; [S]."""
    order = np.arange(len(timeline.steps))
    usable = ~timeline.warm_up
    for size in np.unique(timeline.samples[:, 0]):
        same = np.flatnonzero(usable & (timeline.samples[:, 0] == size))
        order[same] = rng.permutation(same)
    return order


def _jitter(logs: FloatArray) -> FloatArray:
    """What is left of a series about its running median, [S]."""
    return logs - running_median(logs, 2 * LEAST_STEPS + 1)


def _local(
    timeline: Timeline,
    references: References,
    causes: Sequence[Cause],
    order: IntArray,
    observed: FloatArray,
) -> FloatArray:
    """Modelled work before each barrier, [E + 1, W]; unrecorded time between spans stays as it
    was.
    """
    modelled = observed.copy()
    for rank in range(observed.shape[1]):
        seconds, levels = timeline.of_rank(rank), _levels(timeline, references, causes, rank)
        jitter = _jitter(log_ratio(seconds.sum(axis=1), levels.sum(axis=1)))
        jitter[timeline.warm_up] = 0.0
        scale = np.where(seconds > 0, levels / np.where(seconds > 0, seconds, 1.0), 1.0)
        scale *= np.exp(jitter[order])[:, None]
        modelled[:, rank] += timeline.before(rank, scale - 1.0)
    return np.maximum(modelled, 0.0, out=modelled)


def _transfer_factor(
    timeline: Timeline, transfers: Transfers, causes: Sequence[Cause], order: IntArray
) -> FloatArray:
    """Modelled over observed transfer at each barrier, [E]."""
    ratios = np.exp(transfers.step_logs)
    slowness = _transfer_slowness(transfers, causes)
    met = transfers.meets & ~timeline.warm_up
    expected = np.where(met, transfers.step_seconds, 1.0) / ratios
    meetings = np.rint(
        8 * np.log2(expected)
    )  # those of a tier and those of all, say, are of two kinds
    for kind in np.unique(meetings[met]):
        at = np.flatnonzero(met & (meetings == kind))
        usual = ratios[at] / slowness[at]
        jitter = usual / running_mean(usual, 2 * LEAST_STEPS + 1)
        for slow in np.unique(np.rint(64 * slowness[at])):
            # As work is dealt out where ranks meet in every step, so that what comes together stays
            # together.
            alike = np.flatnonzero(np.rint(64 * slowness[at]) == slow)
            jitter[alike] = jitter[alike][np.argsort(np.argsort(order[at[alike]]))]
        ratios[at] = usual.mean() * slowness[at] * jitter
    modelled = transfers.expected * ratios[timeline.barrier_step]
    known = (transfers.seconds > 0) & ~timeline.pause & ~timeline.warm_up[timeline.barrier_step]
    return np.where(known, modelled / np.where(known, transfers.seconds, 1.0), 1.0)


def _transfer_slowness(transfers: Transfers, causes: Sequence[Cause]) -> FloatArray:
    """How much slower than usual a step's transfers are by the causes alone, [S]."""
    logs = np.zeros(len(transfers.step_logs))
    for cause in causes:
        if cause.rank is None and cause.kind == "dynamic":
            logs[cause.first : cause.last + 1] = cause.baseline + np.log(cause.slowdown)
        if cause.burdens_transfer is not None:
            first, last = cause.burdens_transfer
            within = np.s_[first : last + 1]
            met = transfers.step_logs[within][transfers.meets[within]]
            logs[within] = float(np.median(met)) if len(met) else 0.0
    slowness: FloatArray = np.exp(logs)
    return slowness
