"""What removing a cause takes off the observed durations.

Its slowness goes, their jitter stays: a duration d becomes min(d, d* d / m), where m is the running
median of d about it. So it is never slower than it was. To cut each duration at d* instead would
make a rank quicker than a healthy one ever is, which has its jitter too, and a barrier waits for
the worst of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import MIN_STEPS, running_median
from laggard.analysis.detection.reference import References
from laggard.analysis.detection.transfers import Transfers
from laggard.analysis.replay.lockstep.slow_sends import COMM, measure_slow_sends
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.timelines.timeline import Timeline


@dataclass(frozen=True)
class LocalRemoval:
    """Seconds off one rank's work before each barrier from the `first` on, [N], and none elsewhere,
    once all of `causes` are removed.

    A rank's deterministic and dynamic cause overlap, so a pair has a correction of its own (which
    may be negative).
    """

    causes: tuple[int, ...]
    rank: int
    first: int
    seconds: FloatArray

    def seconds_at(self, barriers: IntArray) -> FloatArray:
        """Seconds off before these barriers, elementwise."""
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
    """Links that hold up a collective all along: it moves at the pace of the busiest that is left.

    Attributes:
        causes: the slow links.
        busy_s: busy seconds per step of each.
        needed_s: the same at the reference rate.
        others_s: of the busiest link that is not slow.
        usual_s: usual transfer of the barrier they act on.
        affected: which barriers that is, [E + 1].
    """

    causes: tuple[int, ...]
    busy_s: FloatArray
    needed_s: FloatArray
    others_s: float
    usual_s: float
    affected: BoolArray


@dataclass(frozen=True)
class RemovalPlan:
    """All reliefs of a run's causes, and on which steps' barriers each cause acts, [causes, E +
    1].
    """

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
    """Works out what each cause's removal changes.

    Args:
        timeline: the run.
        references: own and fleet references.
        transfers: the collectives against their usual.
        causes: what may be removed.

    Returns:
        Reliefs, indexed by position in `causes`.
    """
    local: list[LocalRemoval] = []
    for index, cause in enumerate(causes):
        if cause.rank is not None:
            partner = find_deterministic_partner(causes, cause)
            local += _plan_local_removals(timeline, references, causes, index, partner)
        elif cause.kind == "dynamic":
            local += _plan_send_removals(timeline, cause, index)
    return RemovalPlan(
        local=tuple(local),
        transfer=_plan_transfer_removals(timeline, transfers, causes),
        links=_plan_link_removal(timeline, transfers, causes),
        affected=np.stack([_find_affected_barriers(timeline, cause) for cause in causes])
        if causes
        else np.zeros((0, len(timeline.group) + 1), dtype=np.bool_),
    )


def find_deterministic_partner(causes: Sequence[Cause], cause: Cause) -> int | None:
    """Index of the deterministic cause of the same rank and family as a dynamic one."""
    if cause.kind == "deterministic":
        return None
    for index, other in enumerate(causes):
        if other.kind == "deterministic" and (other.rank, other.family) == (
            cause.rank,
            cause.family,
        ):
            return index
    return None


def _plan_local_removals(
    timeline: Timeline,
    references: References,
    causes: Sequence[Cause],
    index: int,
    partner: int | None,
) -> list[LocalRemoval]:
    cause = causes[index]
    assert cause.rank is not None
    rank = cause.rank
    codes = list(cause.spec.codes)
    covered = cause.covers(len(timeline.steps)) & ~timeline.warm_up
    seconds = timeline.work.of_rank(rank, codes)
    fleet = references.fleet.of_rank(rank, codes)
    usual = references.own.of_rank(rank, codes) * np.exp(cause.baseline)
    if cause.kind == "dynamic":
        alone = compute_kept_share(seconds, usual, covered)
        removals = [_build_removal((index,), rank, compute_saved_s(timeline, rank, codes, alone))]
        if partner is not None:
            without_partner = compute_kept_share(usual, fleet, covered)
            both = np.minimum(
                np.minimum(alone, without_partner), compute_kept_share(seconds, fleet, covered)
            )
            joint = alone + without_partner - both
            removals.append(
                _build_removal(
                    (partner, index), rank, -compute_saved_s(timeline, rank, codes, joint)
                )
            )
        return removals
    disturbed = np.zeros_like(covered)
    for other in causes:
        if other.kind == "dynamic" and (other.rank, other.family) == (cause.rank, cause.family):
            disturbed |= other.covers(len(covered))
    kept = compute_kept_share(seconds, fleet, covered & ~disturbed)
    kept = np.minimum(kept, compute_kept_share(usual, fleet, covered & disturbed))
    return [_build_removal((index,), rank, compute_saved_s(timeline, rank, codes, kept))]


def _plan_send_removals(timeline: Timeline, cause: Cause, index: int) -> list[LocalRemoval]:
    """What ranks send for themselves is as quick as usual."""
    removals = []
    for rank in range(len(timeline.end)):
        slow = measure_slow_sends(timeline, rank, cause)
        if slow is not None:
            seconds = timeline.work.of_rank(rank, [COMM])
            kept = compute_kept_share(seconds, np.full_like(seconds, slow.usual_s), slow.steps)
            removals.append(
                _build_removal((index,), rank, compute_saved_s(timeline, rank, [COMM], kept))
            )
    return removals


def _build_removal(causes: tuple[int, ...], rank: int, seconds: FloatArray) -> LocalRemoval:
    """One that holds no more than where it is: a long run's causes are mostly short."""
    nonzero = np.flatnonzero(seconds)
    first, last = (int(nonzero[0]), int(nonzero[-1])) if len(nonzero) else (0, 0)
    return LocalRemoval(causes, rank, first, seconds[first : last + 1].copy())


def compute_kept_share(seconds: FloatArray, target: FloatArray, covered: BoolArray) -> FloatArray:
    """What is kept of durations where covered, once they are `target` but for their jitter, else 1;
    [S, phases].
    """
    kept = np.ones_like(seconds)
    for phase in range(seconds.shape[1]):
        at = np.flatnonzero(covered & (seconds[:, phase] > 0) & (target[:, phase] > 0))
        kept[at, phase] = _compute_level_factor(np.log(seconds[at, phase] / target[at, phase]))
    return kept


def _compute_level_factor(logs: FloatArray) -> FloatArray:
    """Factors that take the level off a series of log ratios, where it is above 0, and leave the
    jitter about it.
    """
    if not len(logs):
        return np.ones(0)
    factor: FloatArray = np.exp(-np.maximum(running_median(logs, 2 * MIN_STEPS + 1), 0.0))
    return factor


def compute_saved_s(
    timeline: Timeline, rank: int, codes: list[int], kept: FloatArray
) -> FloatArray:
    """Seconds off before each barrier when every span of these phases keeps only a share of itself,
    [E + 1].

    Written for shares of a sum of two as well: a share of 1 takes nothing off, whatever `kept` adds
    up from.
    """
    return timeline.work_before_barriers(rank, 1.0 - kept, codes)


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
    """Barriers before or at which the cause may change something, [E + 1].

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
