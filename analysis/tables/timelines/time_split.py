"""Where every rank's time went: an exact additive split that sums to makespan plus evaluation.

Only exposed communication counts: what goes on behind computing costs a rank nothing. After Stash
(Sharma et al., ICDCS 2023), which tells the stalls of a training apart by where they arise.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.span_schema import COMPUTE_PHASES, Flag, Lane, Phase


@dataclass(frozen=True)
class TimeSplit:
    """Seconds per rank, [W] each; the sum over the parts is the same for every rank: makespan +
    outside clock.

    Attributes:
        fetch_s: getting samples.
        prep_s: preparing them.
        compute_s: h2d, forward, backward, optimizer.
        interconnect_s: transfer within a tier: collectives of its ranks alone after the last had
            arrived, and sending to and from one of it.
        network_s: transfer across tiers.
        wait_s: waiting for the last to arrive (at collectives and evaluations), or for another's
            message.
        idle_s: after the rank's own last step.
        other_s: everything in between: bookkeeping, checkpoints, resuming from a pause.
        evaluate_s: pauses outside the clock.
    """

    fetch_s: FloatArray
    prep_s: FloatArray
    compute_s: FloatArray
    interconnect_s: FloatArray
    network_s: FloatArray
    wait_s: FloatArray
    idle_s: FloatArray
    other_s: FloatArray
    evaluate_s: FloatArray

    @property
    def transfer_s(self) -> FloatArray:
        """Exposed transfer, within tiers and across them, [W]."""
        return self.interconnect_s + self.network_s

    @property
    def parts(self) -> dict[str, FloatArray]:
        """Seconds by the name of the part, [W] each."""
        return {f.name.removesuffix("_s"): getattr(self, f.name) for f in fields(self)}

    @property
    def total_s(self) -> FloatArray:
        """Sum of the parts per rank, [W]."""
        total: FloatArray = np.stack(list(self.parts.values())).sum(axis=0)
        return total


@dataclass(frozen=True)
class TierPlacement:
    """The tier of every rank, and of the server, if there is one."""

    tiers: tuple[str, ...]
    server: str | None = None

    def crosses_tiers(self, rank: IntArray, peer: IntArray) -> BoolArray:
        """Whether data between ranks and their peers (the server: one beyond the ranks; nobody: -1)
        crosses tiers, elementwise.

        Where it is not known whom it went to it does if there are several tiers.
        """
        known = [
            *self.tiers,
            self.tiers[0]
            if self.server is None and len(set(self.tiers)) == 1
            else self.server or "",
        ]
        number = {tier: index for index, tier in enumerate(dict.fromkeys(known))}
        tier_index = np.array([number[tier] for tier in known])
        several = len(set(self.tiers)) > 1
        beyond = (peer < 0) | (peer >= len(tier_index))
        has_several_tiers: BoolArray = np.where(
            beyond, several, tier_index[rank] != tier_index[np.where(beyond, 0, peer)]
        )
        return has_several_tiers

    def has_several_tiers(self, member: BoolArray) -> BoolArray:
        """Whether the members of collectives, [E, W], are of several tiers, [E]."""
        number = {tier: index for index, tier in enumerate(dict.fromkeys(self.tiers))}
        tier_index = np.array([number[tier] for tier in self.tiers])
        is_present = np.stack(
            [member[:, tier_index == index].any(axis=1) for index in number.values()]
        )
        has_several_tiers: BoolArray = is_present.sum(axis=0) > 1
        return has_several_tiers


def get_tier_placement(run: RunData) -> TierPlacement:
    """Where a run's ranks and its server were."""
    return TierPlacement(
        tuple(host.tier for host in run.hosts),
        run.record.strategy.server_tier if run.record else None,
    )


def sum_compute_s(run: RunData) -> FloatArray:
    """Seconds that every rank prepared samples and computed, [W], in all the steps that it
    finished.
    """
    computed = np.zeros(run.world_size)
    for spans in run.spans.parts():
        counted = np.isin(spans.phase, [phase.code for phase in COMPUTE_PHASES]) & (
            spans.lane == Lane.MAIN
        )
        counted &= (spans.start_ns >= 0) & (spans.step >= 0) & ((spans.flags & Flag.TRUNCATED) == 0)
        computed += np.bincount(spans.rank[counted], spans.dur_ns[counted] * 1e-9, run.world_size)
    return computed


def split_time(timeline: Timeline, places: TierPlacement) -> TimeSplit:
    """Splits every rank's time from the first-step barrier to the end of the run.

    Args:
        timeline: the run.
        places: which transfers cross tiers.

    Returns:
        Parts whose sum is `timeline.makespan + timeline.outside.sum()` for every rank, to rounding.
    """
    phases = np.stack([timeline.of_rank(rank).sum(axis=0) for rank in range(len(timeline.end))])
    collective, has_several_tiers = ~timeline.pause, places.has_several_tiers(timeline.member)
    sent = timeline.work.sent_s
    across = places.crosses_tiers(*np.indices(sent.shape))
    interconnect, network = (
        np.where(across, 0.0, sent).sum(axis=1),
        np.where(across, sent, 0.0).sum(axis=1),
    )
    wait = np.zeros(len(timeline.end))
    for rank in range(len(wait)):
        transfer = timeline.transfer_of(rank)
        interconnect[rank] += transfer[collective & ~has_several_tiers].sum()
        network[rank] += transfer[collective & has_several_tiers].sum()
        wait[rank] = timeline.wait_of(rank).sum()
    outside = np.full_like(timeline.end, timeline.outside.sum())
    fetch, prep = phases[:, Phase.FETCH.code], phases[:, Phase.PREP.code]
    compute = phases[:, [p.code for p in COMPUTE_PHASES if p is not Phase.PREP]].sum(axis=1)
    idle = timeline.end.max() - timeline.end
    known = fetch + prep + compute + interconnect + network + wait + idle + outside
    return TimeSplit(
        fetch, prep, compute, interconnect, network, wait, idle, timeline.end.max() - known, outside
    )
