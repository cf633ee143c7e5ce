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

from laggard.analysis.causes import FAMILY_CODES, Cause
from laggard.analysis.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.intervals import LEAST_STEPS, running_median
from laggard.analysis.reference import References
from laggard.analysis.replay.sending import COMM, slow_sending
from laggard.analysis.replay.timeline import Timeline
from laggard.analysis.transfers import Transfers


@dataclass(frozen=True)
class LocalRelief:
    """Seconds off one rank's work before each barrier from the `first` on, [N], and none elsewhere,
    once all of `causes` are removed.

    A rank's deterministic and dynamic cause overlap, so a pair has a correction of its own (which
    may be negative).
    """

    causes: tuple[int, ...]
    rank: int
    first: int
    seconds: FloatArray

    def at(self, barriers: IntArray) -> FloatArray:
        """Seconds off before these barriers, elementwise."""
        place = barriers - self.first
        inside = (place >= 0) & (place < len(self.seconds))
        return np.where(inside, self.seconds[np.where(inside, place, 0)], 0.0)


@dataclass(frozen=True)
class TransferRelief:
    """Factor on the transfer after each barrier, [E + 1], once all of `causes` are removed."""

    causes: tuple[int, ...]
    factor: FloatArray


@dataclass(frozen=True)
class LinkRelief:
    """Links that hold up a collective all along: it moves at the pace of the busiest that is left.

    Attributes:
        causes: the slow links.
        busy_s: busy seconds per step of each.
        needed_s: the same at the reference rate.
        others_s: of the busiest link that is not slow.
        usual_s: usual transfer of the barrier they act on.
        acts: which barriers that is, [E + 1].
    """

    causes: tuple[int, ...]
    busy_s: FloatArray
    needed_s: FloatArray
    others_s: float
    usual_s: float
    acts: BoolArray


@dataclass(frozen=True)
class Reliefs:
    """All reliefs of a run's causes, and on which steps' barriers each cause acts, [causes, E +
    1].
    """

    local: tuple[LocalRelief, ...]
    transfer: tuple[TransferRelief, ...]
    links: LinkRelief | None
    acts: BoolArray


def plan_reliefs(
    timeline: Timeline,
    references: References,
    transfers: Transfers,
    causes: Sequence[Cause],
    others_busy_s: float = 0.0,
) -> Reliefs:
    """Works out what each cause's removal changes.

    Args:
        timeline: the run.
        references: own and fleet references.
        transfers: the collectives against their usual.
        causes: what may be removed.
        others_busy_s: busy seconds per step of the busiest link that no cause names.

    Returns:
        Reliefs, indexed by position in `causes`.
    """
    local: list[LocalRelief] = []
    for index, cause in enumerate(causes):
        if cause.rank is not None:
            partner = deterministic_partner(causes, cause)
            local += _local_reliefs(timeline, references, causes, index, partner)
        elif cause.kind == "dynamic":
            local += _sending_reliefs(timeline, cause, index)
    return Reliefs(
        local=tuple(local),
        transfer=_transfer_reliefs(timeline, transfers, causes),
        links=_link_relief(timeline, transfers, causes, others_busy_s),
        acts=np.stack([_acts(timeline, cause) for cause in causes])
        if causes
        else np.zeros((0, len(timeline.group) + 1), dtype=np.bool_),
    )


def deterministic_partner(causes: Sequence[Cause], cause: Cause) -> int | None:
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


def _local_reliefs(
    timeline: Timeline,
    references: References,
    causes: Sequence[Cause],
    index: int,
    partner: int | None,
) -> list[LocalRelief]:
    cause = causes[index]
    assert cause.rank is not None
    rank = cause.rank
    codes = list(FAMILY_CODES[cause.family])
    covered = cause.covers(len(timeline.steps)) & ~timeline.warm_up
    seconds = timeline.work.of_rank(rank, codes)
    fleet = references.fleet.of_rank(rank, codes)
    usual = references.own.of_rank(rank, codes) * np.exp(cause.baseline)
    if cause.kind == "dynamic":
        alone = kept_share(seconds, usual, covered)
        reliefs = [_relief((index,), rank, seconds_off(timeline, rank, codes, alone))]
        if partner is not None:
            without_partner = kept_share(usual, fleet, covered)
            both = np.minimum(
                np.minimum(alone, without_partner), kept_share(seconds, fleet, covered)
            )
            joint = alone + without_partner - both
            reliefs.append(
                _relief((partner, index), rank, -seconds_off(timeline, rank, codes, joint))
            )
        return reliefs
    disturbed = np.zeros_like(covered)
    for other in causes:
        if other.kind == "dynamic" and (other.rank, other.family) == (cause.rank, cause.family):
            disturbed |= other.covers(len(covered))
    kept = kept_share(seconds, fleet, covered & ~disturbed)
    kept = np.minimum(kept, kept_share(usual, fleet, covered & disturbed))
    return [_relief((index,), rank, seconds_off(timeline, rank, codes, kept))]


def _sending_reliefs(timeline: Timeline, cause: Cause, index: int) -> list[LocalRelief]:
    """What ranks send for themselves is as quick as usual."""
    reliefs = []
    for rank in range(len(timeline.end)):
        slow = slow_sending(timeline, rank, cause)
        if slow is not None:
            seconds = timeline.work.of_rank(rank, [COMM])
            kept = kept_share(seconds, np.full_like(seconds, slow.usual_s), slow.steps)
            reliefs.append(_relief((index,), rank, seconds_off(timeline, rank, [COMM], kept)))
    return reliefs


def _relief(causes: tuple[int, ...], rank: int, seconds: FloatArray) -> LocalRelief:
    """One that holds no more than where it is: a long run's causes are mostly short."""
    there = np.flatnonzero(seconds)
    first, last = (int(there[0]), int(there[-1])) if len(there) else (0, 0)
    return LocalRelief(causes, rank, first, seconds[first : last + 1].copy())


def kept_share(seconds: FloatArray, target: FloatArray, covered: BoolArray) -> FloatArray:
    """What is kept of durations where covered, once they are `target` but for their jitter, else 1;
    [S, phases].
    """
    kept = np.ones_like(seconds)
    for phase in range(seconds.shape[1]):
        at = np.flatnonzero(covered & (seconds[:, phase] > 0) & (target[:, phase] > 0))
        kept[at, phase] = _without_level(np.log(seconds[at, phase] / target[at, phase]))
    return kept


def _without_level(logs: FloatArray) -> FloatArray:
    """Factors that take the level off a series of log ratios, where it is above 0, and leave the
    jitter about it.
    """
    if not len(logs):
        return np.ones(0)
    factor: FloatArray = np.exp(-np.maximum(running_median(logs, 2 * LEAST_STEPS + 1), 0.0))
    return factor


def seconds_off(timeline: Timeline, rank: int, codes: list[int], kept: FloatArray) -> FloatArray:
    """Seconds off before each barrier when every span of these phases keeps only a share of itself,
    [E + 1].

    Written for shares of a sum of two as well: a share of 1 takes nothing off, whatever `kept` adds
    up from.
    """
    return timeline.before(rank, 1.0 - kept, codes)


def _transfer_reliefs(
    timeline: Timeline, transfers: Transfers, causes: Sequence[Cause]
) -> tuple[TransferRelief, ...]:
    reliefs = []
    for index, cause in enumerate(causes):
        if cause.family == "network" and cause.kind == "dynamic":
            factor = _transfer_factor(timeline, transfers, cause.first, cause.last, cause.baseline)
            reliefs.append(TransferRelief((index,), factor))
    burdens = sorted(
        {cause.burdens_transfer for cause in causes if cause.burdens_transfer is not None}
    )
    for first, last in burdens:
        shared = tuple(
            i for i, cause in enumerate(causes) if cause.burdens_transfer == (first, last)
        )
        reliefs.append(
            TransferRelief(shared, _transfer_factor(timeline, transfers, first, last, 0.0))
        )
    return tuple(reliefs)


def _transfer_factor(
    timeline: Timeline, transfers: Transfers, first: int, last: int, baseline: float
) -> FloatArray:
    covered = (
        (timeline.barrier_step >= first) & (timeline.barrier_step <= last) & (transfers.seconds > 0)
    )
    factor = np.ones(len(transfers.step_logs))
    factor[first : last + 1] = _without_level(transfers.step_logs[first : last + 1] - baseline)
    return np.append(np.where(covered, factor[timeline.barrier_step], 1.0), 1.0)


def _link_relief(
    timeline: Timeline, transfers: Transfers, causes: Sequence[Cause], others_busy_s: float
) -> LinkRelief | None:
    chosen = tuple(
        i for i, c in enumerate(causes) if c.family == "network" and c.kind == "deterministic"
    )
    groups = np.unique(timeline.group[~timeline.pause])
    if not chosen or not len(groups):
        return None
    usual = {int(g): float(np.median(transfers.expected[timeline.group == g])) for g in groups}
    heaviest = max(usual, key=lambda g: usual[g])
    return LinkRelief(
        causes=chosen,
        busy_s=np.array([causes[i].link_busy_s for i in chosen]),
        needed_s=np.array([causes[i].link_needed_s for i in chosen]),
        others_s=others_busy_s,
        usual_s=max(usual[heaviest], 1e-9),
        acts=np.append(
            (timeline.group == heaviest) & ~timeline.warm_up[timeline.barrier_step], False
        ),
    )


def _acts(timeline: Timeline, cause: Cause) -> BoolArray:
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
    acts: BoolArray = at | before
    return acts
