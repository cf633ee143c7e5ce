"""The links of a run, whatever went over them: what another strategy's messages would find
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.links import measure_links
from laggard.analysis.replay.link_model import HopEnds, NetworkHop, estimate_hops
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import RunFolderError

FRAMING_OVERHEAD = 1514 / 1448
"""Bytes on the wire for each of payload: headers of full-size TCP segments."""


@dataclass(frozen=True)
class Bottleneck:
    """One rate that several ways share."""

    name: str
    ends: frozenset[HopEnds]
    rate_mbps: float


@dataclass(frozen=True)
class SlowPeriod:
    """Ways that carried less for a while, in raw seconds."""

    first_s: float
    last_s: float
    ends: frozenset[HopEnds]
    rate_mbps: float


@dataclass(frozen=True)
class SimulatedNetwork:
    """What messages between hosts go over.

    Attributes:
        hops: the way from one host to another; within a host nothing takes time.
        bottlenecks: rates that ways share.
        slow_periods: when some carried less.
    """

    hops: Mapping[HopEnds, NetworkHop]
    bottlenecks: tuple[Bottleneck, ...] = ()
    slow_periods: tuple[SlowPeriod, ...] = field(default=())

    def hop(self, ends: HopEnds, at_s: float = 0.0) -> NetworkHop:
        """A way as it is then, for a message that is alone on it.

        Raises:
            RunFolderError: nothing is known of it.
        """
        if ends[0] == ends[1]:
            return NetworkHop(ends, float("inf"), 0.0)
        if ends not in self.hops:
            raise RunFolderError(
                f"nothing is known of the way from {ends[0]} to {ends[1]}: no round trip or rate of"
                " it was measured before training, and no traffic was sampled — record the run"
                " anew with a version that verifies links"
            )
        hop = self.hops[ends]
        slowest = min(
            (
                each.rate_mbps
                for each in self.slow_periods
                if each.first_s <= at_s < each.last_s and ends in each.ends
            ),
            default=hop.rate_mbps,
        )
        return replace(hop, rate_mbps=min(hop.rate_mbps, slowest))

    def ring(self, hosts: Sequence[str], at_s: float) -> tuple[NetworkHop, ...]:
        """The ways of a ring, each host sending to the next, the last to the first; those that
        share a rate have an even part of it each.
        """
        hops = [self.hop(ends, at_s) for ends in zip(hosts, [*hosts[1:], hosts[0]], strict=True)]
        return tuple(
            replace(hop, rate_mbps=min([hop.rate_mbps, *self._parts(hop.ends, hops)]))
            for hop in hops
        )

    def _parts(self, ends: HopEnds, hops: Sequence[NetworkHop]) -> list[float]:
        return [
            each.rate_mbps / sum(hop.ends in each.ends for hop in hops)
            for each in self.bottlenecks
            if ends in each.ends
        ]


def build_network(run: RunData, bottlenecks: tuple[Bottleneck, ...] = ()) -> SimulatedNetwork:
    """What a run tells of all ways between its hosts.

    Round trips and rates are those that were measured before training, of the two hosts or of two
    of the same tiers; what carried traffic, and was not measured, is as TCP saw it. In a run that
    was verified, ways that were asked nothing of are as fast as the machine.

    Args:
        run: any.
        bottlenecks: rates that several ways share, which the run's tables do not tell of.

    Raises:
        RunFolderError: it tells nothing of any.
    """
    tiers = {host.host: host.tier for host in run.hosts}
    rtts = {
        (c.src, c.dst): c.measured for c in run.fidelity if c.kind == "rtt" and c.dst is not None
    }
    rates = {
        (c.src, c.dst): c.measured for c in run.fidelity if c.kind == "rate" and c.dst is not None
    }
    links = (
        measure_links(run.links, np.ones(len(run.links), dtype=np.bool_)) if len(run.links) else ()
    )
    carried = estimate_hops(links, run.fidelity, tiers)
    if not rtts and not rates and not carried:
        raise RunFolderError(
            f"{run.folder}: nothing is known of its links: neither fidelity.json nor links.parquet"
            " tells of one, and other strategies send over others"
        )
    rtt_of = _TierEstimates({**{ends: hop.rtt_ms for ends, hop in carried.items()}, **rtts}, tiers)
    rate_of = _TierEstimates(
        {**{ends: hop.rate_mbps for ends, hop in carried.items()}, **rates}, tiers
    )
    verified = bool(rtts or rates)
    hops = {}
    for src in tiers:
        for dst in set(tiers) - {src}:
            rtt_ms, rate_mbps = rtt_of.find((src, dst)), rate_of.find((src, dst))
            if verified or (rtt_ms is not None and rate_mbps is not None):
                hops[src, dst] = NetworkHop((src, dst), rate_mbps or float("inf"), rtt_ms or 0.0)
    return SimulatedNetwork(hops, bottlenecks)


@dataclass(frozen=True)
class _TierEstimates:
    """Values of ways, by hosts or else by their tiers."""

    known: Mapping[HopEnds, float]
    tiers: Mapping[str, str]

    def find(self, ends: HopEnds) -> float | None:
        back = ends[::-1]
        if ends in self.known or back in self.known:
            return self.known.get(ends, self.known.get(back))
        pair = self._pair(ends)
        values = [value for each, value in self.known.items() if self._pair(each) == pair]
        values = values or [
            value for each, value in self.known.items() if self._pair(each[::-1]) == pair
        ]
        return float(np.median(values)) if values else None

    def _pair(self, ends: HopEnds) -> HopEnds:
        return self.tiers.get(ends[0], ends[0]), self.tiers.get(ends[1], ends[1])


def find_ends_between_tiers(ends: HopEnds, tiers: Mapping[str, str]) -> frozenset[HopEnds]:
    """All ways between the tiers of two hosts, both directions."""
    pair = {tiers.get(end, end) for end in ends}
    return frozenset(
        (src, dst)
        for src in tiers
        for dst in tiers
        if src != dst and {tiers[src], tiers[dst]} == pair
    )


def require_named_links(causes: Sequence[Cause], folder: object) -> None:
    """Every link that was slow for a while must be known.

    Raises:
        RunFolderError: one is not.
    """
    for cause in causes:
        if (
            cause.spec.uses_links
            and cause.kind == "dynamic"
            and cause.link is None
            and cause.rank is None
        ):
            raise RunFolderError(
                f"{folder}: from step {cause.first} to {cause.last} transfers were slow, and it is"
                " not known which link held them up, so nobody knows what other strategies'"
                " messages would have met"
            )
