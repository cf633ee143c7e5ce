"""Seconds that a what-if saves in the steps of asynchronous ranks.

A what-if removes causes, or makes ranks, transfers or links faster. All of them act in this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.asynchronous_causes import (
    StackedSteps,
    transfer_s,
    usual_transfer_s,
)
from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.reference import References
from laggard.analysis.replay.kept_shares import KeptShares, compute_kept_share, plan_kept_shares
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.simulation.step_graph import StepDurations
from laggard.core.span_schema import Phase

_COMM = Phase.COMM.code


@dataclass(frozen=True)
class StepSavings:
    """Seconds saved in each step of a rank; negative values mean that it takes longer.

    A rank's deterministic and dynamic cause overlap, so a pair of them has a correction of its
    own, which may be negative.

    Attributes:
        rank: rank whose steps shorten.
        before: seconds saved before the step's wait, [N].
        after: seconds saved after the step's wait, [N].
        message: seconds saved by the message that the step waits for, [N].
        causes: positions of the causes that must be removed for it, all of them.
    """

    rank: int
    before: FloatArray
    after: FloatArray
    message: FloatArray
    causes: tuple[int, ...] = ()

    def scaled(self, work: float, message: float) -> StepSavings:
        """Return the savings if work and messages take these shares of their time anyway."""
        return replace(
            self,
            before=self.before * work,
            after=self.after * work,
            message=self.message * message,
        )


def plan_removals(
    rank_timelines: Sequence[RankTimeline],
    work: StackedSteps,
    references: References,
    causes: Sequence[Cause],
) -> tuple[StepSavings, ...]:
    """Compute the effect of removing each cause.

    Args:
        rank_timelines: timeline of every rank.
        work: steps of all ranks, stacked.
        references: own and fleet references.
        causes: causes that may be removed.
    """
    removals: list[StepSavings] = []
    for index, cause in enumerate(causes):
        assert cause.rank is not None
        rank_timeline = rank_timelines[cause.rank]
        steps = np.arange(len(rank_timeline))
        if cause.spec.uses_links:
            covered, baseline = cause.covers(len(steps)), float(np.exp(cause.baseline))
            removals.append(_shorten_transfers(index, cause.rank, rank_timeline, covered, baseline))
            continue
        shares = plan_kept_shares(work, references, causes, index)
        removals += [_shorten_work(each, rank_timeline) for each in shares]
        if cause.burdens_transfer is not None:
            first, last = cause.burdens_transfer
            covered = (steps >= first) & (steps <= last)
            removals.append(_shorten_transfers(index, cause.rank, rank_timeline, covered, 1.0))
    return tuple(removals)


def apply_savings(
    observed: StepDurations, savings: Sequence[StepSavings], removed: BoolArray
) -> StepDurations:
    """Return the durations of steps with savings, for removed causes given as [C, causes]."""
    before = [np.repeat(each, len(removed), axis=0) for each in observed.before]
    after = [np.repeat(each, len(removed), axis=0) for each in observed.after]
    earlier_s = [np.zeros_like(each) for each in before]
    for each in savings:
        is_saved = np.logical_and.reduce(removed[:, list(each.causes)], axis=1)[:, None]
        before[each.rank] -= is_saved * each.before
        after[each.rank] -= is_saved * each.after
        earlier_s[each.rank] += is_saved * each.message
    return StepDurations(
        tuple(np.maximum(each, 0.0) for each in before),
        tuple(np.maximum(each, 0.0) for each in after),
        tuple(earlier_s),
    )


def _shorten_work(shares: KeptShares, rank_timeline: RankTimeline) -> StepSavings:
    off = shares.sign * (1.0 - shares.kept[: len(rank_timeline)])
    return StepSavings(
        shares.rank,
        (rank_timeline.before[:, shares.codes] * off).sum(axis=1),
        (rank_timeline.after[:, shares.codes] * off).sum(axis=1),
        np.zeros(len(rank_timeline)),
        shares.causes,
    )


def _shorten_transfers(
    index: int, rank: int, rank_timeline: RankTimeline, covered: BoolArray, baseline: float
) -> StepSavings:
    """Return the savings if transfers take their usual time."""
    usual = np.full((len(rank_timeline), 1), usual_transfer_s(rank_timeline) * baseline)
    covered = covered & ~rank_timeline.warm_up
    off = 1.0 - compute_kept_share(transfer_s(rank_timeline)[:, None], usual, covered)[:, 0]
    # Between peers only an awaited message delays a rank, so it arrives earlier; with a server the
    # transfers themselves become shorter.
    directly = 0.0 if rank_timeline.is_peer_to_peer else off
    return StepSavings(
        rank,
        rank_timeline.before[:, _COMM] * directly,
        rank_timeline.after[:, _COMM] * directly,
        rank_timeline.message_s * (off - directly),
        (index,),
    )
