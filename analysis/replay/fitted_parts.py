"""Parts of the fitted model that every kind of run shares.

Every duration is its reference, times the slowdown of the causes acting on it, times jitter. Jitter
is fluctuation that is shorter than any slow interval. It is fitted as the rest of a duration about
its own running median. It is then redistributed in whole steps, so that no observed duration stays
in its place. Slow drift, and slow intervals that were not found, remain unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import MIN_STEPS, running_mean, running_median
from laggard.analysis.detection.reference import LocalWork, References, compute_log_ratio
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.timelines.phase_times import PHASES


def compute_levels(
    work: LocalWork, references: References, causes: Sequence[Cause], rank: int
) -> FloatArray:
    """Return the durations of a rank's work that references and causes alone explain, [S, P]."""
    levels = references.device.of_rank(rank, range(PHASES))
    own = [cause for cause in causes if cause.rank == rank]
    # Deterministic causes come first: they fill all steps, and dynamic ones overwrite their
    # interval.
    for cause in sorted(own, key=lambda each: each.kind == "dynamic"):
        codes = list(cause.spec.codes)
        if cause.spec.counts_unrecorded:
            # Stalls are kept as measured, like all unrecorded time.
            levels[:, codes] = work.of_rank(rank)[:, codes]
            continue
        usual = references.own.of_rank(rank, codes) * np.exp(cause.baseline)
        if cause.kind == "deterministic":
            levels[:, codes] = usual
        else:
            inside = np.flatnonzero(cause.covers(len(levels)))[:, None]
            levels[inside, codes] = usual[inside[:, 0]] * cause.slowdown
    return levels


def extract_jitter(seconds: FloatArray, levels: FloatArray) -> FloatArray:
    """Return the logs of measured by explained seconds of whole steps, less their median, [S].

    Args:
        seconds: measured durations, [S, phases].
        levels: explained durations, [S, phases].
    """
    logs = compute_log_ratio(seconds.sum(axis=1), levels.sum(axis=1))
    return logs - running_median(logs, 2 * MIN_STEPS + 1)


def shuffle_alike(usable: BoolArray, kinds: IntArray, keys: FloatArray) -> IntArray:
    """Return for each step a step of the same kind, whose jitter it gets, [S].

    Args:
        usable: mask of the steps that take part, [S].
        kinds: kind of each step, [S].
        keys: random numbers, [S]; ranks with the same keys get the jitter of the same steps.
    """
    order = np.arange(len(kinds))
    for kind in np.unique(kinds[usable]):
        alike = np.flatnonzero(usable & (kinds == kind))
        order[alike] = alike[np.argsort(keys[alike])]
    return order


def classify_slowness(slowness: FloatArray) -> IntArray:
    """Return a number for each transfer, [N]; only those with equal numbers exchange jitter."""
    return np.rint(64 * slowness).astype(np.int64)


def model_transfers(seconds: FloatArray, slowness: FloatArray, order: IntArray) -> FloatArray:
    """Return transfers with their usual duration, their slowness, and redistributed jitter, [N].

    Ranks that rarely synchronize often have links of two speeds, and some messages have arrived
    before a rank asks for them. No median lies in between, so the mean is used.

    Args:
        seconds: measured durations, at least one, [N].
        slowness: slowdown that the causes explain, [N].
        order: transfer whose jitter each one gets, [N].
    """
    usual = seconds / slowness
    jitter = usual / running_mean(usual, 2 * MIN_STEPS + 1)
    modeled: FloatArray = usual.mean() * slowness * jitter[order]
    return modeled
