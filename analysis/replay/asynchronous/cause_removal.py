"""Effect of removing causes on the steps of asynchronous ranks.

The slowness is removed and the jitter is kept (see `replay/lockstep/cause_removal.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.asynchronous_causes import (
    StackedSteps,
    transfer_s,
    usual_transfer_s,
)
from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.reference import References
from laggard.analysis.replay.asynchronous.async_replay import AsyncReplay
from laggard.analysis.replay.lockstep.cause_removal import (
    KeptShares,
    compute_kept_share,
    plan_kept_shares,
)
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.simulation.step_graph import StepDurations
from laggard.core.span_schema import Phase

_COMM = Phase.COMM.code


@dataclass(frozen=True)
class CauseRemoval:
    """Seconds saved in each step of a rank once all of `causes` are removed.

    A rank's deterministic and dynamic cause overlap, so a pair of them has a correction of its
    own, which may be negative.

    Attributes:
        causes: positions of the causes.
        rank: rank whose steps shorten.
        before: seconds saved before the step's wait, [N].
        after: seconds saved after the step's wait, [N].
        message: seconds saved by the message that the step waits for, [N].
    """

    causes: tuple[int, ...]
    rank: int
    before: FloatArray
    after: FloatArray
    message: FloatArray


def plan_async_removals(
    rank_timelines: Sequence[RankTimeline],
    work: StackedSteps,
    references: References,
    causes: Sequence[Cause],
) -> tuple[CauseRemoval, ...]:
    """Compute the effect of removing each cause.

    Args:
        rank_timelines: timeline of every rank.
        work: steps of all ranks, stacked.
        references: own and fleet references.
        causes: causes that may be removed.
    """
    removals: list[CauseRemoval] = []
    for index, cause in enumerate(causes):
        assert cause.rank is not None
        rank_timeline, rank = rank_timelines[cause.rank], cause.rank
        steps = len(rank_timeline)
        inside = cause.covers(steps) & ~rank_timeline.warm_up
        if cause.spec.uses_links:
            removals.append(
                _build_transfer_removal(
                    index, rank, rank_timeline, inside, float(np.exp(cause.baseline))
                )
            )
            continue
        codes = list(cause.spec.codes)
        shares = plan_kept_shares(
            causes,
            index,
            inside,
            work.seconds[:steps, rank][:, codes],
            references.own.of_rank(rank, codes)[:steps],
            references.fleet.of_rank(rank, codes)[:steps],
        )
        removals += [_build_removal(each, rank, rank_timeline, codes) for each in shares]
        if cause.burdens_transfer is not None:
            first, last = cause.burdens_transfer
            burdened = (
                (np.arange(steps) >= first) & (np.arange(steps) <= last) & ~rank_timeline.warm_up
            )
            removals.append(_build_transfer_removal(index, rank, rank_timeline, burdened, 1.0))
    return tuple(removals)


def apply_removals(
    async_replay: AsyncReplay, removals: Sequence[CauseRemoval], removed: BoolArray
) -> StepDurations:
    """Return the durations of steps with causes removed, given as [C, causes]."""
    observed = async_replay.observed()
    before = [np.repeat(each, len(removed), axis=0) for each in observed.before]
    after = [np.repeat(each, len(removed), axis=0) for each in observed.after]
    earlier_s = [
        np.zeros((len(removed), len(rank_timeline)))
        for rank_timeline in async_replay.rank_timelines
    ]
    for removal in removals:
        is_removed = np.logical_and.reduce(removed[:, list(removal.causes)], axis=1)[:, None]
        before[removal.rank] -= is_removed * removal.before
        after[removal.rank] -= is_removed * removal.after
        earlier_s[removal.rank] += is_removed * removal.message
    return StepDurations(
        tuple(np.maximum(each, 0.0) for each in before),
        tuple(np.maximum(each, 0.0) for each in after),
        tuple(earlier_s),
    )


def _build_removal(
    shares: KeptShares, rank: int, rank_timeline: RankTimeline, codes: list[int]
) -> CauseRemoval:
    off = shares.sign * (1.0 - shares.kept)
    none = np.zeros(len(rank_timeline))
    return CauseRemoval(
        shares.causes,
        rank,
        (rank_timeline.before[:, codes] * off).sum(axis=1),
        (rank_timeline.after[:, codes] * off).sum(axis=1),
        none,
    )


def _build_transfer_removal(
    index: int, rank: int, rank_timeline: RankTimeline, covered: BoolArray, baseline: float
) -> CauseRemoval:
    """Build a removal that reduces transfers to their usual duration."""
    usual = np.full((len(rank_timeline), 1), usual_transfer_s(rank_timeline) * baseline)
    off = 1.0 - compute_kept_share(transfer_s(rank_timeline)[:, None], usual, covered)[:, 0]
    # Between peers only an awaited message delays a rank, so it arrives earlier; with a server the
    # transfers themselves become shorter.
    if rank_timeline.is_peer_to_peer:
        none = np.zeros(len(rank_timeline))
        return CauseRemoval((index,), rank, none, none, rank_timeline.message_s * off)
    return CauseRemoval(
        (index,),
        rank,
        rank_timeline.before[:, _COMM] * off,
        rank_timeline.after[:, _COMM] * off,
        np.zeros(len(rank_timeline)),
    )
