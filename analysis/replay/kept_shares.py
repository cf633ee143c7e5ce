"""Shares of measured durations that remain once causes are removed, for every kind of run.

The slowness is removed and the jitter is kept: a duration d becomes min(d, d* d / m), where m is
the running median of d around it and d* the reference. So a duration never grows. Cutting each
duration at d* instead would make a rank faster than any healthy rank, which has jitter too, and
the others wait for the slowest of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import MIN_STEPS, running_median
from laggard.analysis.detection.reference import LocalWork, References
from laggard.analysis.tables.columns import BoolArray, FloatArray


@dataclass(frozen=True)
class KeptShares:
    """Shares of a rank's durations that are kept once all of `causes` are removed.

    A rank's deterministic and dynamic cause overlap. Removing both gives one joint effect, which
    differs from the sum of the two single effects, so a pair corrects the sum: its sign is -1.

    Attributes:
        causes: positions of the causes.
        rank: rank whose work shortens.
        codes: codes of the phases.
        kept: share of each duration that is kept, [S, codes].
        sign: 1, or -1 if the saved seconds are to be subtracted.
    """

    causes: tuple[int, ...]
    rank: int
    codes: tuple[int, ...]
    kept: FloatArray
    sign: float = 1.0


def plan_kept_shares(
    work: LocalWork, references: References, causes: Sequence[Cause], index: int
) -> tuple[KeptShares, ...]:
    """Compute which shares of durations remain without one cause of a rank.

    Args:
        work: work of all ranks.
        references: own and fleet references.
        causes: all causes.
        index: position of the cause.
    """
    cause = causes[index]
    assert cause.rank is not None
    rank, codes = cause.rank, cause.spec.codes
    seconds, fleet = work.of_rank(rank)[:, codes], references.fleet.of_rank(rank, codes)
    usual = references.own.of_rank(rank, codes) * np.exp(cause.baseline)
    covered = cause.covers(len(seconds)) & work.counted[:, rank]
    if cause.kind == "deterministic":
        # Steps inside a dynamic cause count with their usual duration: the excess belongs to that
        # cause.
        disturbed = find_disturbed_steps(causes, cause, len(covered))
        kept = compute_kept_share(seconds, fleet, covered & ~disturbed)
        kept = np.minimum(kept, compute_kept_share(usual, fleet, covered & disturbed))
        return (KeptShares((index,), rank, codes, kept),)
    alone = KeptShares((index,), rank, codes, compute_kept_share(seconds, usual, covered))
    partner = _find_deterministic_partner(causes, cause)
    if partner is None:
        return (alone,)
    without_partner = compute_kept_share(usual, fleet, covered)
    both = np.minimum(
        np.minimum(alone.kept, without_partner), compute_kept_share(seconds, fleet, covered)
    )
    joint = alone.kept + without_partner - both
    return alone, KeptShares((partner, index), rank, codes, joint, sign=-1.0)


def _find_deterministic_partner(causes: Sequence[Cause], cause: Cause) -> int | None:
    """Return the index of the deterministic cause of a dynamic one's rank and family, or None."""
    for index, other in enumerate(causes):
        if other.kind == "deterministic" and (other.rank, other.family) == (
            cause.rank,
            cause.family,
        ):
            return index
    return None


def find_disturbed_steps(causes: Sequence[Cause], cause: Cause, steps: int) -> BoolArray:
    """Return a mask of the steps inside dynamic causes of a cause's rank and family, [steps]."""
    disturbed = np.zeros(steps, dtype=np.bool_)
    for other in causes:
        if other.kind == "dynamic" and (other.rank, other.family) == (cause.rank, cause.family):
            disturbed |= other.covers(steps)
    return disturbed


def compute_kept_share(seconds: FloatArray, target: FloatArray, covered: BoolArray) -> FloatArray:
    """Return the share of each duration that is kept when its level drops to `target`, [S, phases].

    The jitter is kept. The share is 1 outside `covered`.
    """
    kept = np.ones_like(seconds)
    for phase in range(seconds.shape[1]):
        at = np.flatnonzero(covered & (seconds[:, phase] > 0) & (target[:, phase] > 0))
        kept[at, phase] = compute_level_factor(np.log(seconds[at, phase] / target[at, phase]))
    return kept


def compute_level_factor(logs: FloatArray) -> FloatArray:
    """Return factors that remove the level of a series of log ratios where the level is above 0.

    The jitter about the level is kept.
    """
    if not len(logs):
        return np.ones(0)
    factor: FloatArray = np.exp(-np.maximum(running_median(logs, 2 * MIN_STEPS + 1), 0.0))
    return factor
