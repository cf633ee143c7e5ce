"""Effect of removing a cause on the measured durations of ranks in lockstep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.lockstep.family_work import StalledWork
from laggard.analysis.detection.reference import References
from laggard.analysis.detection.transfers import Transfers
from laggard.analysis.replay.kept_shares import (
    compute_kept_share,
    compute_level_factor,
    find_disturbed_steps,
    plan_kept_shares,
)
from laggard.analysis.replay.lockstep.saved_time import SavedTime
from laggard.analysis.replay.lockstep.slow_sends import COMM, measure_slow_sends
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.timelines.timeline import Timeline


@dataclass(frozen=True)
class LocalRemoval:
    """Seconds saved before each barrier by one rank's work once all of `causes` are removed.

    A rank's deterministic and dynamic cause overlap, so a pair of them has a correction of its
    own, which may be negative.

    Attributes:
        causes: positions of the causes.
        rank: rank whose work shortens.
        first: barrier of the first entry of `seconds`; nothing is saved outside.
        seconds: seconds saved before each barrier, [N].
    """

    causes: tuple[int, ...]
    rank: int
    first: int
    seconds: FloatArray

    def seconds_at(self, barriers: IntArray) -> FloatArray:
        """Return the seconds saved before each of these barriers."""
        place = barriers - self.first
        inside = (place >= 0) & (place < len(self.seconds))
        return np.where(inside, self.seconds[np.where(inside, place, 0)], 0.0)


@dataclass(frozen=True)
class TransferRemoval:
    """Factor on the transfer after each barrier, [E + 1], once all of `causes` are removed."""

    causes: tuple[int, ...]
    factor: FloatArray


@dataclass(frozen=True)
class LinkRemoval:
    """Links that slow a collective throughout; it moves at the pace of the busiest remaining link.

    Attributes:
        causes: positions of the causes that are slow links.
        busy_s: busy seconds per step of each slow link.
        needed_s: busy seconds per step of each slow link at the reference rate.
        others_s: busy seconds per step of the busiest link that is not slow.
        usual_s: usual transfer of the barriers that the links act on.
        affected: mask of these barriers, [E + 1].
    """

    causes: tuple[int, ...]
    busy_s: FloatArray
    needed_s: FloatArray
    others_s: float
    usual_s: float
    affected: BoolArray


@dataclass(frozen=True)
class RemovalPlan:
    """All removals of a run's causes, and the barriers that each cause affects, [causes, E + 1]."""

    local: tuple[LocalRemoval, ...]
    transfer: tuple[TransferRemoval, ...]
    links: LinkRemoval | None
    affected: BoolArray


def plan_removals(
    timeline: Timeline,
    references: References,
    transfers: Transfers,
    causes: Sequence[Cause],
) -> RemovalPlan:
    """Compute the effect of removing each cause.

    Args:
        timeline: barriers and work of the run.
        references: own and fleet references.
        transfers: collectives compared with their usual durations.
        causes: causes that may be removed.

    Returns:
        Removals that name causes by their position in `causes`.
    """
    local: list[LocalRemoval] = []
    saved_time = SavedTime(timeline)
    for index, cause in enumerate(causes):
        if cause.rank is not None:
            local += _plan_local_removals(saved_time, references, causes, index)
        elif cause.kind == "dynamic":
            local += _plan_send_removals(saved_time, cause, index)
    return RemovalPlan(
        local=tuple(local),
        transfer=_plan_transfer_removals(timeline, transfers, causes),
        links=_plan_link_removal(timeline, transfers, causes),
        affected=np.stack([_find_affected_barriers(timeline, cause) for cause in causes])
        if causes
        else np.zeros((0, len(timeline.group) + 1), dtype=np.bool_),
    )


def _plan_local_removals(
    saved_time: SavedTime, references: References, causes: Sequence[Cause], index: int
) -> list[LocalRemoval]:
    if causes[index].spec.counts_unrecorded:
        return [_plan_stall_removal(saved_time, references, causes, index)]
    shares = plan_kept_shares(saved_time.timeline, references, causes, index)
    return [
        _build_removal(
            each.causes, each.rank, each.sign * saved_time.of_work(each.rank, each.codes, each.kept)
        )
        for each in shares
    ]


def _plan_stall_removal(
    saved_time: SavedTime, references: References, causes: Sequence[Cause], index: int
) -> LocalRemoval:
    """Return the removal of the time in which a rank stalled longer than it should.

    A dynamic cause is the time beyond the rank's own normal level, and a deterministic cause that
    between this level and the fastest ranks', so that the two add up.
    """
    cause, timeline = causes[index], saved_time.timeline
    assert cause.rank is not None
    work = StalledWork(timeline, references, cause.spec)
    steps = len(timeline.steps)
    stalled, fleet_s = work.taken_of(cause.rank), work.fleet_stalled_s(cause.rank)
    normal = work.own_of(cause.rank) * np.exp(cause.baseline) - work.usual_step_s(cause.rank)
    normal = np.maximum(normal, fleet_s)
    if cause.kind == "dynamic":
        excess = stalled - normal
    else:
        disturbed = find_disturbed_steps(causes, cause, steps)
        excess = np.where(disturbed, np.minimum(stalled, normal), stalled) - fleet_s
    covered = cause.covers(steps) & ~timeline.warm_up
    excess = np.where(covered, np.maximum(excess, 0.0), 0.0)
    kept = 1.0 - excess / np.where(stalled > 0, stalled, 1.0)
    codes = list(cause.spec.codes)
    recorded = saved_time.of_work(cause.rank, codes, np.repeat(kept[:, None], len(codes), axis=1))
    saved = saved_time.of_unrecorded(cause.rank, kept)
    return _build_removal((index,), cause.rank, recorded + saved)


def _plan_send_removals(saved_time: SavedTime, cause: Cause, index: int) -> list[LocalRemoval]:
    """Return removals that make the individual sends of all ranks as fast as usual."""
    removals, timeline = [], saved_time.timeline
    for rank in range(len(timeline.end)):
        slow = measure_slow_sends(timeline, rank, cause)
        if slow is not None:
            seconds = timeline.work.of_rank(rank, [COMM])
            kept = compute_kept_share(seconds, np.full_like(seconds, slow.usual_s), slow.steps)
            removals.append(_build_removal((index,), rank, saved_time.of_work(rank, [COMM], kept)))
    return removals


def _build_removal(causes: tuple[int, ...], rank: int, seconds: FloatArray) -> LocalRemoval:
    """Build a removal that stores only its nonzero range, since most causes are short."""
    nonzero = np.flatnonzero(seconds)
    first, last = (int(nonzero[0]), int(nonzero[-1])) if len(nonzero) else (0, 0)
    return LocalRemoval(causes, rank, first, seconds[first : last + 1].copy())


def _plan_transfer_removals(
    timeline: Timeline, transfers: Transfers, causes: Sequence[Cause]
) -> tuple[TransferRemoval, ...]:
    removals = []
    for index, cause in enumerate(causes):
        if cause.spec.uses_links and cause.kind == "dynamic":
            factor = _compute_transfer_factor(
                timeline, transfers, cause.first, cause.last, cause.baseline
            )
            removals.append(TransferRemoval((index,), factor))
    burdens = sorted(
        {cause.burdens_transfer for cause in causes if cause.burdens_transfer is not None}
    )
    for first, last in burdens:
        shared = tuple(
            i for i, cause in enumerate(causes) if cause.burdens_transfer == (first, last)
        )
        removals.append(
            TransferRemoval(shared, _compute_transfer_factor(timeline, transfers, first, last, 0.0))
        )
    return tuple(removals)


def _compute_transfer_factor(
    timeline: Timeline, transfers: Transfers, first: int, last: int, baseline: float
) -> FloatArray:
    covered = (
        (timeline.barrier_step >= first) & (timeline.barrier_step <= last) & (transfers.seconds > 0)
    )
    factor = np.ones(len(transfers.step_logs))
    factor[first : last + 1] = compute_level_factor(
        transfers.step_logs[first : last + 1] - baseline
    )
    return np.append(np.where(covered, factor[timeline.barrier_step], 1.0), 1.0)


def _plan_link_removal(
    timeline: Timeline, transfers: Transfers, causes: Sequence[Cause]
) -> LinkRemoval | None:
    chosen = tuple(
        i for i, c in enumerate(causes) if c.spec.uses_links and c.kind == "deterministic"
    )
    # Slow links act on the collective with the longest usual transfer only.
    groups = np.unique(timeline.group[~timeline.pause])
    if not chosen or not len(groups):
        return None
    usual = {int(g): float(np.median(transfers.expected[timeline.group == g])) for g in groups}
    heaviest = max(usual, key=lambda g: usual[g])
    return LinkRemoval(
        causes=chosen,
        busy_s=np.array([causes[i].link_busy_s for i in chosen]),
        needed_s=np.array([causes[i].link_needed_s for i in chosen]),
        others_s=causes[chosen[0]].link_others_busy_s,
        usual_s=max(usual[heaviest], 1e-9),
        affected=np.append(
            (timeline.group == heaviest) & ~timeline.warm_up[timeline.barrier_step], False
        ),
    )


def _find_affected_barriers(timeline: Timeline, cause: Cause) -> BoolArray:
    """Return a mask of the barriers before or at which removing the cause may matter, [E + 1].

    The work before a barrier may belong to the step before (its optimizer), and transfers reach
    into the next block.
    """
    covered = cause.covers(len(timeline.steps))
    if cause.burdens_transfer is not None:
        first, last = cause.burdens_transfer
        covered[first : last + 1] = True
    at = np.append(covered[timeline.barrier_step], covered[-1])
    before = np.concatenate([at[:1], at[:-1]])
    affected: BoolArray = at | before
    return affected
