"""What removing causes takes off the steps of a rank: their slowness and not their jitter (see
`replay/relief.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.causes import FAMILY_CODES, Cause
from laggard.analysis.columns import BoolArray, FloatArray
from laggard.analysis.own_pace.causes import Work, transfer_s, usual_transfer_s
from laggard.analysis.own_pace.paces import Pace
from laggard.analysis.own_pace.replay import Durations, Race
from laggard.analysis.reference import References
from laggard.analysis.replay.relief import deterministic_partner, kept_share
from laggard.span_schema import Phase

_COMM = Phase.COMM.code


@dataclass(frozen=True)
class Relief:
    """Seconds off each step of a rank, before and behind its wait and of the message that it waits
    for, [N], once all of `causes` are removed.

    A rank's deterministic and dynamic cause overlap, so a pair has a correction of its own (which
    may be negative).
    """

    causes: tuple[int, ...]
    rank: int
    before: FloatArray
    after: FloatArray
    message: FloatArray


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
        steps = len(pace)
        inside = cause.covers(steps) & ~pace.warm_up
        if cause.family == "network":
            reliefs.append(
                _transfer_relief(index, rank, pace, inside, float(np.exp(cause.baseline)))
            )
            continue
        codes = list(FAMILY_CODES[cause.family])
        seconds = work.seconds[:steps, rank][:, codes]
        usual = references.own.of_rank(rank, codes)[:steps] * np.exp(cause.baseline)
        if cause.kind == "dynamic":
            alone = kept_share(seconds, usual, inside)
            reliefs.append(_relief((index,), rank, pace, codes, alone))
            partner = deterministic_partner(causes, cause)
            if partner is not None:
                fleet = references.fleet.of_rank(rank, codes)[:steps]
                lasting = kept_share(usual, fleet, inside)
                both = np.minimum(np.minimum(alone, lasting), kept_share(seconds, fleet, inside))
                reliefs.append(
                    _relief((partner, index), rank, pace, codes, 2.0 - alone - lasting + both)
                )
            if cause.burdens_transfer is not None:
                first, last = cause.burdens_transfer
                burdened = (np.arange(steps) >= first) & (np.arange(steps) <= last) & ~pace.warm_up
                reliefs.append(_transfer_relief(index, rank, pace, burdened, 1.0))
            continue
        disturbed = np.zeros(steps, dtype=np.bool_)
        for other in causes:
            if other.kind == "dynamic" and (other.rank, other.family) == (rank, cause.family):
                disturbed |= other.covers(steps)
        fleet = references.fleet.of_rank(rank, codes)[:steps]
        kept = np.minimum(
            kept_share(seconds, fleet, inside & ~disturbed),
            kept_share(usual, fleet, inside & disturbed),
        )
        reliefs.append(_relief((index,), rank, pace, codes, kept))
    return tuple(reliefs)


def relieved(race: Race, reliefs: Sequence[Relief], removed: BoolArray) -> Durations:
    """What steps take with causes removed, [C, causes]."""
    observed = race.observed()
    before = [np.repeat(each, len(removed), axis=0) for each in observed.before]
    after = [np.repeat(each, len(removed), axis=0) for each in observed.after]
    sooner = [np.zeros((len(removed), len(pace))) for pace in race.paces]
    for relief in reliefs:
        gone = np.logical_and.reduce(removed[:, list(relief.causes)], axis=1)[:, None]
        before[relief.rank] -= gone * relief.before
        after[relief.rank] -= gone * relief.after
        sooner[relief.rank] += gone * relief.message
    return Durations(
        tuple(np.maximum(each, 0.0) for each in before),
        tuple(np.maximum(each, 0.0) for each in after),
        tuple(sooner),
    )


def _relief(
    causes: tuple[int, ...], rank: int, pace: Pace, codes: list[int], kept: FloatArray
) -> Relief:
    off = 1.0 - kept
    none = np.zeros(len(pace))
    return Relief(
        causes,
        rank,
        (pace.before[:, codes] * off).sum(axis=1),
        (pace.after[:, codes] * off).sum(axis=1),
        none,
    )


def _transfer_relief(
    index: int, rank: int, pace: Pace, covered: BoolArray, baseline: float
) -> Relief:
    """Transfers are the usual ones, at most."""
    usual = np.full((len(pace), 1), usual_transfer_s(pace) * baseline)
    off = 1.0 - kept_share(transfer_s(pace)[:, None], usual, covered)[:, 0]
    if pace.meshed:
        none = np.zeros(len(pace))
        return Relief((index,), rank, none, none, pace.message_s * off)
    return Relief(
        (index,), rank, pace.before[:, _COMM] * off, pace.after[:, _COMM] * off, np.zeros(len(pace))
    )
