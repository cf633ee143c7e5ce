"""Links that were slow all along where each rank has a pace of its own, and what steps would save
were they like the fastest class of links.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.causes import Cause
from laggard.analysis.columns import BoolArray
from laggard.analysis.link_change import Hop, LinkChange, hops_of_run
from laggard.analysis.links import NAMED_SLOWDOWN, SLOW_TRIP, SlowLinks, slow_links, tier_pair
from laggard.analysis.load import Run
from laggard.analysis.own_pace.link_gains import link_gains, names_senders, tiers_of
from laggard.analysis.own_pace.paces import Pace
from laggard.analysis.own_pace.relief import Relief


@dataclass(frozen=True)
class LastingLinks:
    """Causes, one for each tier pair that has slow links, and the changes that would make its links
    like the fastest class, side by side.
    """

    causes: tuple[Cause, ...]
    changes: tuple[tuple[LinkChange, ...], ...]


def find_lasting_links(run: Run, paces: Sequence[Pace], causes: Sequence[Cause]) -> LastingLinks:
    """Links whose kernels say that they were slower than the fastest class all along (see
    `slow_links`).

    Args:
        run: with samples of its links; without there are none.
        paces: of every rank.
        causes: found before; the time of those of the network is left out.
    """
    quiet = _quiet(run, paces, causes)
    if not quiet.any():
        return LastingLinks((), ())
    tiers = tiers_of(run)
    slow = slow_links(run.links, quiet, tiers)
    last = max(map(len, paces)) - 1
    hops = hops_of_run(run, tiers) if slow.links else {}
    found = []
    for link in slow.links:
        slowdown = min(link.slowdown, _slowness(link.ends, slow, hops, tiers))
        if slowdown >= NAMED_SLOWDOWN:
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
    return LastingLinks(tuple(found), tuple(_changes(cause, slow, hops, tiers) for cause in found))


def _quiet(run: Run, paces: Sequence[Pace], causes: Sequence[Cause]) -> BoolArray:
    """Link samples of the training outside any slow time of the network, [N]."""
    time_s = run.links.time_ns * 1e-9
    quiet: BoolArray = time_s >= 0.0
    for cause in causes:
        if cause.family == "network" and cause.kind == "dynamic" and cause.rank is not None:
            pace = paces[cause.rank]
            last = min(cause.last, len(pace) - 1)
            quiet &= (time_s < pace.start_s[cause.first]) | (time_s > pace.end_s[last])
    return quiet


def _slowness(
    ends: tuple[str, str],
    slow: SlowLinks,
    hops: Mapping[tuple[str, str], Hop],
    tiers: Mapping[str, str],
) -> float:
    """How much slower a link is by a flow of its own, or by the least round trip; 1 where nothing
    was measured.

    Ranks of their own pace send each other now this and now that: busy time by itself makes a link
    slow over which mostly words are sent.
    """
    fleet = [hop for hop in hops.values() if slow.fleet == tier_pair(hop.ends, tiers)]
    if ends not in hops or not fleet:
        return 1.0
    rate = float(np.median([hop.rate_mbps for hop in fleet])) / hops[ends].rate_mbps
    trip = hops[ends].rtt_ms / float(np.median([hop.rtt_ms for hop in fleet]))
    return max(rate, trip if trip >= SLOW_TRIP else 1.0)


def _changes(
    cause: Cause, slow: SlowLinks, hops: Mapping[tuple[str, str], Hop], tiers: Mapping[str, str]
) -> tuple[LinkChange, ...]:
    """All links of the cause's tier pair as fast as the fastest class is, and no farther; faster
    ones stay as they are.
    """
    assert cause.link is not None
    if cause.link not in hops:
        return ()
    rate_mbps = hops[cause.link].rate_mbps * cause.slowdown
    near = [hop.rtt_ms for hop in hops.values() if slow.fleet == tier_pair(hop.ends, tiers)]
    rtt_ms = float(np.median(near)) if near else math.inf
    pair = tier_pair(cause.link, tiers)
    found = {}
    for hop in hops.values():
        back = hops.get((hop.ends[1], hop.ends[0]), hop)
        if tier_pair(hop.ends, tiers) != pair or max(hop.rate_mbps, back.rate_mbps) >= rate_mbps:
            continue
        delay_ms = min(hop.rtt_ms, back.rtt_ms, rtt_ms) / 2.0
        first, second = sorted(hop.ends)
        found[first, second] = LinkChange(first, second, rate_mbps=rate_mbps, delay_ms=delay_ms)
    return tuple(found.values())


def plan_link_reliefs(
    run: Run, paces: Sequence[Pace], lasting: LastingLinks, begin: int
) -> tuple[Relief, ...]:
    """What each of them being like the fastest class takes off the steps of ranks; nothing where
    nobody waits for messages.

    Args:
        run: with samples of its links.
        paces: of every rank.
        lasting: the links.
        begin: position of the first of them among all causes.
    """
    if not names_senders(run):
        return ()
    return tuple(
        Relief((begin + place,), rank, gain.before, gain.after, gain.message)
        for place, changes in enumerate(lasting.changes)
        if changes
        for rank, gain in enumerate(link_gains(run, paces, changes))
    )
