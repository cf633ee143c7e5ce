"""The links of a run, whatever went over them: what another strategy's messages would find
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from laggard.analysis.causes import Cause
from laggard.analysis.link_change import Ends, Hop, hops_of
from laggard.analysis.links import measure_links
from laggard.analysis.load import Run
from laggard.errors import RunFolderError

FRAMED = 1514 / 1448
"""Bytes on the wire for each of payload: headers of full-size TCP segments."""


@dataclass(frozen=True)
class Bottleneck:
    """One rate that several ways share."""

    name: str
    ways: frozenset[Ends]
    rate_mbps: float


@dataclass(frozen=True)
class SlowTime:
    """Ways that carried less for a while, in raw seconds."""

    first_s: float
    last_s: float
    ways: frozenset[Ends]
    rate_mbps: float


@dataclass(frozen=True)
class Network:
    """What messages between hosts go over.

    Attributes:
        hops: the way from one host to another; within a host nothing takes time.
        shared: rates that ways share.
        slow: when some carried less.
    """

    hops: Mapping[Ends, Hop]
    shared: tuple[Bottleneck, ...] = ()
    slow: tuple[SlowTime, ...] = field(default=())

    def hop(self, ends: Ends, at_s: float = 0.0) -> Hop:
        """A way as it is then, for a message that is alone on it.

        Raises:
            RunFolderError: nothing is known of it.
        """
        if ends[0] == ends[1]:
            return Hop(ends, float("inf"), 0.0)
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
                for each in self.slow
                if each.first_s <= at_s < each.last_s and ends in each.ways
            ),
            default=hop.rate_mbps,
        )
        return replace(hop, rate_mbps=min(hop.rate_mbps, slowest))

    def ring(self, hosts: Sequence[str], at_s: float) -> tuple[Hop, ...]:
        """The ways of a ring, each host sending to the next, the last to the first; those that
        share a rate have an even part of it each.
        """
        hops = [self.hop(ends, at_s) for ends in zip(hosts, [*hosts[1:], hosts[0]], strict=True)]
        return tuple(
            replace(hop, rate_mbps=min([hop.rate_mbps, *self._parts(hop.ends, hops)]))
            for hop in hops
        )

    def _parts(self, ends: Ends, hops: Sequence[Hop]) -> list[float]:
        return [
            each.rate_mbps / sum(hop.ends in each.ways for hop in hops)
            for each in self.shared
            if ends in each.ways
        ]


def network_of_run(run: Run, shared: tuple[Bottleneck, ...] = ()) -> Network:
    """What a run tells of all ways between its hosts.

    Round trips and rates are those that were measured before training, of the two hosts or of two
    of the same tiers; what carried traffic, and was not measured, is as TCP saw it. In a run that
    was verified, ways that were asked nothing of are as fast as the machine.

    Args:
        run: any.
        shared: rates that several ways share, which the run's tables do not tell of.

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
    carried = hops_of(links, run.fidelity, tiers)
    if not rtts and not rates and not carried:
        raise RunFolderError(
            f"{run.folder}: nothing is known of its links: neither fidelity.json nor links.parquet"
            " tells of one, and other strategies send over others"
        )
    rtt_of = _Alike({**{ends: hop.rtt_ms for ends, hop in carried.items()}, **rtts}, tiers)
    rate_of = _Alike({**{ends: hop.rate_mbps for ends, hop in carried.items()}, **rates}, tiers)
    verified = bool(rtts or rates)
    hops = {}
    for src in tiers:
        for dst in set(tiers) - {src}:
            rtt_ms, rate_mbps = rtt_of.find((src, dst)), rate_of.find((src, dst))
            if verified or (rtt_ms is not None and rate_mbps is not None):
                hops[src, dst] = Hop((src, dst), rate_mbps or float("inf"), rtt_ms or 0.0)
    return Network(hops, shared)


@dataclass(frozen=True)
class _Alike:
    """Values of ways, by hosts or else by their tiers."""

    known: Mapping[Ends, float]
    tiers: Mapping[str, str]

    def find(self, ends: Ends) -> float | None:
        back = ends[::-1]
        if ends in self.known or back in self.known:
            return self.known.get(ends, self.known.get(back))
        pair = self._pair(ends)
        values = [value for each, value in self.known.items() if self._pair(each) == pair]
        values = values or [
            value for each, value in self.known.items() if self._pair(each[::-1]) == pair
        ]
        return float(np.median(values)) if values else None

    def _pair(self, ends: Ends) -> Ends:
        return self.tiers.get(ends[0], ends[0]), self.tiers.get(ends[1], ends[1])


def between_tiers(ends: Ends, tiers: Mapping[str, str]) -> frozenset[Ends]:
    """All ways between the tiers of two hosts, both directions."""
    pair = {tiers.get(end, end) for end in ends}
    return frozenset(
        (src, dst)
        for src in tiers
        for dst in tiers
        if src != dst and {tiers[src], tiers[dst]} == pair
    )


def require_named(causes: Sequence[Cause], folder: object) -> None:
    """Every link that was slow for a while must be known.

    Raises:
        RunFolderError: one is not.
    """
    for cause in causes:
        if (
            cause.family == "network"
            and cause.kind == "dynamic"
            and cause.link is None
            and cause.rank is None
        ):
            raise RunFolderError(
                f"{folder}: from step {cause.first} to {cause.last} transfers were slow, and it is"
                " not known which link held them up, so nobody knows what other strategies'"
                " messages would have met"
            )
