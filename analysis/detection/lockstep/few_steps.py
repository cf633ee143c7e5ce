"""Causes in a trace of few steps: ranks are compared with the fastest ranks of the same steps.

With fewer than twenty steps no rank has a baseline of its own. A duration is therefore divided by
the fastest ranks' usual one, and by what these ranks share in the step: steps of a language model
differ in length, and the first profiled step is often slower on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import MIN_RATIO, MIN_Z, TO_SIGMA
from laggard.analysis.detection.lockstep.family_work import FamilyWork
from laggard.analysis.detection.reference import (
    MIN_SCATTER,
    compute_log_ratio,
    find_fastest_ranks,
)
from laggard.analysis.detection.series_causes import DETERMINISTIC_SHARE
from laggard.analysis.detection.short_slowness import compute_ratio_confidence
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray


def find_few_step_causes(
    work: FamilyWork, candidates: Sequence[int], usable: IntArray
) -> Iterator[Cause]:
    """Yield the causes of one family in a trace of few steps.

    Args:
        work: work of the family.
        candidates: ranks that spend enough time on it to be slow.
        usable: indices of the steps, at least one.

    Yields:
        A deterministic cause for a rank that is slow in 90 % of the steps, else a dynamic cause
        of its slow steps. A single rank has no cause, since there is nothing to compare it with.
    """
    world = work.timeline.samples.shape[1]
    if world < 2 or not candidates:
        return
    relative, sigma = _compare_with_fastest(work, world, usable)
    slow = relative >= max(math.log(MIN_RATIO), MIN_Z * sigma)
    for rank in candidates:
        logs, is_slow = relative[:, rank], slow[:, rank]
        if not is_slow.any():
            continue
        own = compute_log_ratio(work.seconds_of(rank)[usable], work.own_of(rank)[usable])
        yield _build_cause(work, rank, logs, own, is_slow, usable, sigma)


def _compare_with_fastest(
    work: FamilyWork, world: int, usable: IntArray
) -> tuple[FloatArray, float]:
    """Return the log ratios to the fastest ranks in the same step, [N, W], and their noise."""
    to_fleet = np.stack(
        [
            compute_log_ratio(work.seconds_of(rank)[usable], work.fleet_of(rank)[usable])
            for rank in range(world)
        ],
        axis=1,
    )
    usual = np.exp(np.median(to_fleet, axis=0))
    leaders = find_fastest_ranks(usual, range(world))
    shared = np.quantile(to_fleet[:, leaders], 0.5, axis=1, method="lower")
    relative: FloatArray = to_fleet - shared[:, None]
    deviations = np.abs(relative[:, leaders])
    # One of the leaders is the median of each step and deviates by nothing.
    apart = np.sort(deviations, axis=None)[len(usable) :]
    noise = TO_SIGMA * float(np.median(apart)) if len(apart) else 0.0
    return relative, max(noise, MIN_SCATTER)


def _build_cause(
    work: FamilyWork,
    rank: int,
    logs: FloatArray,
    own: FloatArray,
    is_slow: BoolArray,
    usable: IntArray,
    sigma: float,
) -> Cause:
    """Build the cause of a rank's slow steps; `logs` and `own` are log ratios, [N]."""
    family, steps = work.family.name, usable[is_slow]
    level = float(np.median(logs[is_slow]))
    confidence = compute_ratio_confidence(level, sigma, len(steps))
    if is_slow.mean() >= DETERMINISTIC_SHARE:
        first, last = int(usable[0]), int(usable[-1])
        slowdown = math.exp(level)
        return Cause(family, "deterministic", rank, first, last, slowdown, confidence)
    baseline = float(np.median(own[~is_slow]))
    return Cause(
        family,
        "dynamic",
        rank,
        int(steps[0]),
        int(steps[-1]),
        math.exp(level - float(np.median(logs[~is_slow]))),
        confidence,
        baseline,
        steps=tuple(steps.tolist()),
        is_short=True,
    )
