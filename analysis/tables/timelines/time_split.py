"""Exact additive split of every rank's time; the parts sum to makespan plus evaluation.

Only exposed communication counts: communication in parallel with computing costs a rank no time.
The split follows Stash (Sharma et al., ICDCS 2023), which separates the stalls of a training by
their origin.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.span_schema import COMPUTE_PHASES, SAMPLE_PHASES, Flag, Lane, Phase


@dataclass(frozen=True)
class TimeSplit:
    """Seconds per rank, [W] each; each rank's parts sum to makespan + time outside the clock.

    Attributes:
        fetch_s: reading samples.
        prep_s: preparing samples.
        compute_s: h2d, forward, backward and optimizer.
        interconnect_s: transfer within a tier: collectives among its ranks after the last arrival,
            and communication with single peers in it.
        network_s: transfer across tiers.
        wait_s: waiting for the last arrival (at collectives and evaluations) or for another rank's
            message.
        idle_s: time after the rank's own last step.
        other_s: all other time: bookkeeping, checkpoints, resuming from a pause.
        evaluate_s: evaluation pauses outside the clock.
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
        """Return the exposed transfer, within tiers and across them, [W]."""
        return self.interconnect_s + self.network_s

    @property
    def parts(self) -> dict[str, FloatArray]:
        """Return the seconds by name of the part, [W] each."""
        return {f.name.removesuffix("_s"): getattr(self, f.name) for f in fields(self)}

    @property
    def total_s(self) -> FloatArray:
        """Return the sum of the parts per rank, [W]."""
        total: FloatArray = np.stack(list(self.parts.values())).sum(axis=0)
        return total


@dataclass(frozen=True)
class TierPlacement:
    """Tier of every rank, and of the server if there is one."""

    tiers: tuple[str, ...]
    server: str | None = None

    def crosses_tiers(self, rank: IntArray, peer: IntArray) -> BoolArray:
        """Return whether data between ranks and their peers crosses tiers, elementwise.

        Args:
            rank: numbers of ranks.
            peer: numbers of their peers; the server is one beyond the last rank. For an unknown
                peer, such as -1, data is taken to cross tiers if there are several.
        """
        # The entry beyond the ranks is the server's tier. If it is not recorded, it is the only
        # tier, or one of its own if there are several.
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
        """Return whether the members of collectives, [E, W], are in several tiers, [E]."""
        number = {tier: index for index, tier in enumerate(dict.fromkeys(self.tiers))}
        tier_index = np.array([number[tier] for tier in self.tiers])
        is_present = np.stack(
            [member[:, tier_index == index].any(axis=1) for index in number.values()]
        )
        has_several_tiers: BoolArray = is_present.sum(axis=0) > 1
        return has_several_tiers


def get_tier_placement(run: RunData) -> TierPlacement:
    """Return the tiers of a run's ranks and of its server."""
    return TierPlacement(
        tuple(host.tier for host in run.hosts),
        run.record.strategy.server_tier if run.record else None,
    )


def sum_compute_s(run: RunData) -> FloatArray:
    """Return the seconds in which every rank prepared samples and computed, [W].

    All steps that the rank finished count.
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
    """Split every rank's time from the first-step barrier to the end of the run.

    Args:
        timeline: timeline of the run.
        places: tiers of the ranks, which decide the transfers that cross tiers.

    Returns:
        Parts whose sum is `timeline.makespan + timeline.outside.sum()` for every rank, up to
        rounding.
    """
    phases = np.stack([timeline.of_rank(rank).sum(axis=0) for rank in range(len(timeline.end))])
    collective, has_several_tiers = ~timeline.pause, places.has_several_tiers(timeline.member)
    sent = timeline.work.sent_s
    across = places.crosses_tiers(*np.indices(sent.shape))
    interconnect, network = (
        np.where(across, 0.0, sent).sum(axis=1),
        np.where(across, sent, 0.0).sum(axis=1),
    )
    # One rank at a time: [E, W] arrays of a long run would take much memory.
    wait = np.zeros(len(timeline.end))
    for rank in range(len(wait)):
        transfer = timeline.transfer_of(rank)
        interconnect[rank] += transfer[collective & ~has_several_tiers].sum()
        network[rank] += transfer[collective & has_several_tiers].sum()
        wait[rank] = timeline.wait_of(rank).sum()
    outside = np.full_like(timeline.end, timeline.outside.sum())
    fetch = phases[:, [phase.code for phase in SAMPLE_PHASES]].sum(axis=1)
    prep = phases[:, Phase.PREP.code]
    compute = phases[:, [p.code for p in COMPUTE_PHASES if p is not Phase.PREP]].sum(axis=1)
    idle = timeline.end.max() - timeline.end
    known = fetch + prep + compute + interconnect + network + wait + idle + outside
    return TimeSplit(
        fetch, prep, compute, interconnect, network, wait, idle, timeline.end.max() - known, outside
    )
