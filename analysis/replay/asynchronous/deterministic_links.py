"""Links of asynchronous runs that were slow throughout, and the savings if they were fast.

A fast link is one like those of the fastest class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.links import (
    MIN_NAMED_SLOWDOWN,
    MIN_RTT_RATIO,
    SlowLinks,
    find_slow_links,
    get_tier_pair,
)
from laggard.analysis.replay.asynchronous.link_savings import (
    compute_link_savings,
    has_named_senders,
    map_host_tiers,
)
from laggard.analysis.replay.asynchronous.step_savings import StepSavings
from laggard.analysis.replay.link_model import estimate_run_hops
from laggard.analysis.tables.columns import BoolArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.cost_model.links import LinkChange, NetworkHop


@dataclass(frozen=True)
class DeterministicLinks:
    """Causes for the tier pairs with slow links, and the changes that would make these links fast.

    The two tuples have the same order; a change makes a link as fast as the fastest class.
    """

    causes: tuple[Cause, ...]
    changes: tuple[tuple[LinkChange, ...], ...]


def find_deterministic_links(
    run: RunData, rank_timelines: Sequence[RankTimeline], causes: Sequence[Cause]
) -> DeterministicLinks:
    """Find links that were slower than the fastest class throughout (see `find_slow_links`).

    The evidence is the kernel's statistics of connections.

    Args:
        run: run with samples of its links; without samples the result is empty.
        rank_timelines: timeline of every rank.
        causes: causes found before; the times of those of the network are ignored.
    """
    quiet = _mask_quiet_samples(run, rank_timelines, causes)
    if not quiet.any():
        return DeterministicLinks((), ())
    tiers = map_host_tiers(run)
    slow = find_slow_links(run.links, quiet, tiers)
    last = max(map(len, rank_timelines)) - 1
    hops = estimate_run_hops(run, tiers) if slow.links else {}
    found = []
    for link in slow.links:
        # Both kinds of evidence must show the slowness: busy time, and a measured rate or round
        # trip.
        slowdown = min(link.slowdown, _measure_slowness(link.ends, slow, hops, tiers))
        if slowdown >= MIN_NAMED_SLOWDOWN:
            found.append(
                Cause(
                    "network",
                    "deterministic",
                    None,
                    0,
                    last,
                    slowdown,
                    link.confidence,
                    link=link.ends,
                )
            )
    return DeterministicLinks(
        tuple(found), tuple(_plan_changes(cause, slow, hops, tiers) for cause in found)
    )


def _mask_quiet_samples(
    run: RunData, rank_timelines: Sequence[RankTimeline], causes: Sequence[Cause]
) -> BoolArray:
    """Return a mask of the link samples in training outside slow periods of the network, [N]."""
    time_s = run.links.time_ns * 1e-9
    quiet: BoolArray = time_s >= 0.0
    for cause in causes:
        if cause.spec.uses_links and cause.kind == "dynamic" and cause.rank is not None:
            rank_timeline = rank_timelines[cause.rank]
            last = min(cause.last, len(rank_timeline) - 1)
            quiet &= (time_s < rank_timeline.start_s[cause.first]) | (
                time_s > rank_timeline.end_s[last]
            )
    return quiet


def _measure_slowness(
    ends: tuple[str, str],
    slow: SlowLinks,
    hops: Mapping[tuple[str, str], NetworkHop],
    tiers: Mapping[str, str],
) -> float:
    """Return the slowdown of a link by its single-flow rate or smallest round trip.

    The result is 1 if neither was measured. Busy time alone would name links that carry mostly
    control messages, because asynchronous ranks do not exchange a fixed amount of data per step.
    """
    fleet = [hop for hop in hops.values() if slow.fleet == get_tier_pair(hop.ends, tiers)]
    if ends not in hops or not fleet:
        return 1.0
    rate = float(np.median([hop.rate_mbps for hop in fleet])) / hops[ends].rate_mbps
    trip = hops[ends].rtt_ms / float(np.median([hop.rtt_ms for hop in fleet]))
    return max(rate, trip if trip >= MIN_RTT_RATIO else 1.0)


def _plan_changes(
    cause: Cause,
    slow: SlowLinks,
    hops: Mapping[tuple[str, str], NetworkHop],
    tiers: Mapping[str, str],
) -> tuple[LinkChange, ...]:
    """Return changes that make the links of the cause's tier pair as fast as the fastest class.

    No link becomes faster than that, and links that are faster already keep their rate.
    """
    assert cause.link is not None
    if cause.link not in hops:
        return ()
    rate_mbps = hops[cause.link].rate_mbps * cause.slowdown
    near = [hop.rtt_ms for hop in hops.values() if slow.fleet == get_tier_pair(hop.ends, tiers)]
    rtt_ms = float(np.median(near)) if near else math.inf
    pair = get_tier_pair(cause.link, tiers)
    found = {}
    for hop in hops.values():
        back = hops.get((hop.ends[1], hop.ends[0]), hop)
        if (
            get_tier_pair(hop.ends, tiers) != pair
            or max(hop.rate_mbps, back.rate_mbps) >= rate_mbps
        ):
            continue
        # One symmetric change covers both directions, so the pair of hosts is the key.
        delay_ms = min(hop.rtt_ms, back.rtt_ms, rtt_ms) / 2.0
        first, second = sorted(hop.ends)
        found[first, second] = LinkChange(first, second, rate_mbps=rate_mbps, delay_ms=delay_ms)
    return tuple(found.values())


def plan_link_removals(
    run: RunData,
    rank_timelines: Sequence[RankTimeline],
    deterministic: DeterministicLinks,
    begin: int,
) -> tuple[StepSavings, ...]:
    """Return the savings of steps if each of these links were like the fastest class.

    The result is empty if no rank waits for messages.

    Args:
        run: run with samples of its links.
        rank_timelines: timeline of every rank.
        deterministic: slow links.
        begin: position of the first of them among all causes.
    """
    if not has_named_senders(run):
        return ()
    return tuple(
        replace(savings, causes=(begin + place,))
        for place, changes in enumerate(deterministic.changes)
        if changes
        for savings in compute_link_savings(run, rank_timelines, changes)
    )
