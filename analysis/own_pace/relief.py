"""What removing causes takes off the steps of a rank: min(d, d*), never slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.causes import FAMILY_CODES, Cause
from laggard.analysis.columns import BoolArray, FloatArray
from laggard.analysis.own_pace.causes import Work
from laggard.analysis.own_pace.paces import Pace
from laggard.analysis.own_pace.replay import Durations, Race
from laggard.analysis.reference import References
from laggard.span_schema import Phase

_COMM = Phase.COMM.code


@dataclass(frozen=True)
class Relief:
    """Seconds off each step of a rank, before and behind its wait, [N], once all of `causes` are removed.

    A rank's deterministic and dynamic cause overlap, so a pair has a correction of its own (which may be negative).
    """

    causes: tuple[int, ...]
    rank: int
    before: FloatArray
    after: FloatArray


def plan_own_reliefs(
    paces: Sequence[Pace], work: Work, references: References, causes: Sequence[Cause]
) -> tuple[Relief, ...]:
    """Works out what each cause's removal changes.

    Args:
        paces: of every rank.
        work: theirs, side by side.
        references: own and fleet references.
        causes: what may be removed.
    """
    reliefs: list[Relief] = []
    for index, cause in enumerate(causes):
        assert cause.rank is not None
        pace, rank = paces[cause.rank], cause.rank
        codes = [_COMM] if cause.family == "network" else list(FAMILY_CODES[cause.family])
        steps = len(pace)
        seconds = work.seconds[:steps, rank][:, codes]
        usual = _usual(work, references, cause, rank, codes, steps)
        inside = cause.covers(steps) & ~pace.warm_up
        if cause.kind == "dynamic":
            alone = _kept(seconds, usual, inside)
            reliefs.append(_relief((index,), rank, pace, codes, alone))
            partner = _deterministic_partner(causes, cause)
            if partner is not None:
                fleet = references.fleet[:steps, rank][:, codes]
                lasting = _kept(usual, fleet, inside)
                both = np.minimum(np.minimum(alone, lasting), _kept(seconds, fleet, inside))
                reliefs.append(_relief((partner, index), rank, pace, codes, 2.0 - alone - lasting + both))
            if cause.burdens_transfer is not None:
                reliefs.append(_burden(index, cause, rank, pace, work))
            continue
        disturbed = np.zeros(steps, dtype=np.bool_)
        for other in causes:
            if other.kind == "dynamic" and (other.rank, other.family) == (rank, cause.family):
                disturbed |= other.covers(steps)
        fleet = references.fleet[:steps, rank][:, codes]
        kept = np.minimum(_kept(seconds, fleet, inside & ~disturbed), _kept(usual, fleet, inside & disturbed))
        reliefs.append(_relief((index,), rank, pace, codes, kept))
    return tuple(reliefs)


def relieved(race: Race, reliefs: Sequence[Relief], removed: BoolArray) -> Durations:
    """What steps take with causes removed, [C, causes]."""
    observed = race.observed()
    before = [np.repeat(each, len(removed), axis=0) for each in observed.before]
    after = [np.repeat(each, len(removed), axis=0) for each in observed.after]
    for relief in reliefs:
        gone = np.logical_and.reduce(removed[:, list(relief.causes)], axis=1)[:, None]
        before[relief.rank] -= gone * relief.before
        after[relief.rank] -= gone * relief.after
    return Durations(tuple(np.maximum(each, 0.0) for each in before), tuple(np.maximum(each, 0.0) for each in after))


def _usual(work: Work, references: References, cause: Cause, rank: int, codes: list[int], steps: int) -> FloatArray:
    """The rank's own normal, [N, phases]."""
    if cause.family == "network":
        counted = work.counted[:, rank]
        return np.full((steps, 1), np.median(work.seconds[counted, rank, _COMM]) * np.exp(cause.baseline))
    usual: FloatArray = references.own[:steps, rank][:, codes] * np.exp(cause.baseline)
    return usual


def _deterministic_partner(causes: Sequence[Cause], cause: Cause) -> int | None:
    for index, other in enumerate(causes):
        if other.kind == "deterministic" and (other.rank, other.family) == (cause.rank, cause.family):
            return index
    return None


def _kept(seconds: FloatArray, target: FloatArray, covered: BoolArray) -> FloatArray:
    """min(d, d*) / d where covered, else 1; [N, phases]."""
    safe = np.where(seconds > 0, seconds, 1.0)
    return np.where(covered[:, None] & (seconds > 0), np.minimum(1.0, target / safe), 1.0)


def _relief(causes: tuple[int, ...], rank: int, pace: Pace, codes: list[int], kept: FloatArray) -> Relief:
    off = 1.0 - kept
    return Relief(causes, rank, (pace.before[:, codes] * off).sum(axis=1), (pace.after[:, codes] * off).sum(axis=1))


def _burden(index: int, cause: Cause, rank: int, pace: Pace, work: Work) -> Relief:
    """Transfers that were slow because the rank computed slowly are its usual ones without that."""
    assert cause.burdens_transfer is not None
    first, last = cause.burdens_transfer
    covered = np.zeros(len(pace), dtype=np.bool_)
    covered[first : last + 1] = True
    seconds = work.seconds[: len(pace), rank][:, [_COMM]]
    counted = work.counted[:, rank]
    usual = np.full_like(seconds, np.median(work.seconds[counted, rank, _COMM]))
    return _relief((index,), rank, pace, [_COMM], _kept(seconds, usual, covered & ~pace.warm_up))
