"""Effect of removing a cause on the measured durations.

The slowness is removed and the jitter is kept: a duration d becomes min(d, d* d / m), where m is
the running median of d around it and d* the reference. So a duration never grows. Cutting each
duration at d* instead would make a rank faster than any healthy rank, which has jitter too, and a
barrier waits for the slowest of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import MIN_STEPS, running_median
from laggard.analysis.detection.lockstep.family_work import StalledWork
from laggard.analysis.detection.reference import References
from laggard.analysis.detection.transfers import Transfers
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


def find_deterministic_partner(causes: Sequence[Cause], cause: Cause) -> int | None:
    """Return the index of the deterministic cause of a dynamic one's rank and family, or None."""
    if cause.kind == "deterministic":
        return None
    for index, other in enumerate(causes):
        if other.kind == "deterministic" and (other.rank, other.family) == (
            cause.rank,
            cause.family,
        ):
            return index
    return None


@dataclass(frozen=True)
class KeptShares:
    """Shares of a rank's durations that are kept once all of `causes` are removed.

    A rank's deterministic and dynamic cause overlap. Removing both gives one joint effect, which
    differs from the sum of the two single effects, so a pair corrects the sum: its sign is -1.

    Attributes:
        causes: positions of the causes.
        kept: share of each duration that is kept, [S, phases].
        sign: 1, or -1 if the saved seconds are to be subtracted.
    """

    causes: tuple[int, ...]
    kept: FloatArray
    sign: float = 1.0


def plan_kept_shares(
    causes: Sequence[Cause],
    index: int,
    covered: BoolArray,
    seconds: FloatArray,
    own: FloatArray,
    fleet: FloatArray,
) -> tuple[KeptShares, ...]:
    """Compute which shares of durations remain without one cause of a rank.

    Args:
        causes: all causes.
        index: position of the cause.
        covered: mask of the steps that the cause covers, [S].
        seconds: durations of the phases that the cause slows down, [S, phases].
        own: the rank's own references, [S, phases].
        fleet: references of the fastest class, [S, phases].
    """
    cause = causes[index]
    usual = own * np.exp(cause.baseline)
    if cause.kind == "deterministic":
        # Steps inside a dynamic cause count with their usual duration: the excess belongs to that
        # cause.
        disturbed = _find_disturbed_steps(causes, cause, len(covered))
        kept = compute_kept_share(seconds, fleet, covered & ~disturbed)
        kept = np.minimum(kept, compute_kept_share(usual, fleet, covered & disturbed))
        return (KeptShares((index,), kept),)
    alone = compute_kept_share(seconds, usual, covered)
    partner = find_deterministic_partner(causes, cause)
    if partner is None:
        return (KeptShares((index,), alone),)
    without_partner = compute_kept_share(usual, fleet, covered)
    both = np.minimum(
        np.minimum(alone, without_partner), compute_kept_share(seconds, fleet, covered)
    )
    joint = alone + without_partner - both
    return KeptShares((index,), alone), KeptShares((partner, index), joint, sign=-1.0)


def _plan_local_removals(
    saved_time: SavedTime, references: References, causes: Sequence[Cause], index: int
) -> list[LocalRemoval]:
    cause, timeline = causes[index], saved_time.timeline
    assert cause.rank is not None
    rank = cause.rank
    if cause.spec.counts_unrecorded:
        return [_plan_stall_removal(saved_time, references, causes, index)]
    codes = list(cause.spec.codes)
    shares = plan_kept_shares(
        causes,
        index,
        cause.covers(len(timeline.steps)) & ~timeline.warm_up,
        timeline.work.of_rank(rank, codes),
        references.own.of_rank(rank, codes),
        references.fleet.of_rank(rank, codes),
    )
    return [
        _build_removal(each.causes, rank, each.sign * saved_time.of_work(rank, codes, each.kept))
        for each in shares
    ]


def _find_disturbed_steps(causes: Sequence[Cause], cause: Cause, steps: int) -> BoolArray:
    """Return a mask of the steps inside dynamic causes of a cause's rank and family, [steps]."""
    disturbed = np.zeros(steps, dtype=np.bool_)
    for other in causes:
        if other.kind == "dynamic" and (other.rank, other.family) == (cause.rank, cause.family):
            disturbed |= other.covers(steps)
    return disturbed


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
        disturbed = _find_disturbed_steps(causes, cause, steps)
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


def compute_kept_share(seconds: FloatArray, target: FloatArray, covered: BoolArray) -> FloatArray:
    """Return the share of each duration that is kept when its level drops to `target`, [S, phases].

    The jitter is kept. The share is 1 outside `covered`.
    """
    kept = np.ones_like(seconds)
    for phase in range(seconds.shape[1]):
        at = np.flatnonzero(covered & (seconds[:, phase] > 0) & (target[:, phase] > 0))
        kept[at, phase] = _compute_level_factor(np.log(seconds[at, phase] / target[at, phase]))
    return kept


def _compute_level_factor(logs: FloatArray) -> FloatArray:
    """Return factors that remove the level of a series of log ratios where the level is above 0.

    The jitter about the level is kept.
    """
    if not len(logs):
        return np.ones(0)
    factor: FloatArray = np.exp(-np.maximum(running_median(logs, 2 * MIN_STEPS + 1), 0.0))
    return factor


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
    factor[first : last + 1] = _compute_level_factor(
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
