"""What a link would carry otherwise: the rates and round trips of a run's links, and how a ring
all-reduce goes over them.

In a ring all-reduce of S bytes over n hosts (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69,
2009) every link carries 2 (n - 1) parts of S / n, one after the other. As gloo does it, a part goes
as two halves, each sent once the receiver has said that it waits for it, and a host goes on to its
next part when it has received one and got rid of one. So nobody is ever more than a part ahead of a
neighbour, and all move at the pace of the slowest link: per part both halves on the wire, or a
round trip and one half, whichever takes longer. Who arrives early gets a few parts on before the
others come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.links import Link, measure_links
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.errors import InputError, RunFolderError
from laggard.core.run_schema import FidelityCheck

HopEnds = tuple[str, str]


@dataclass(frozen=True)
class LinkChange:
    """A link, or all links between two tiers, with another rate or delay.

    Attributes:
        src: a host, or a tier.
        dst: a host, or a tier.
        rate_mbps: what it carries; None: as before.
        delay_ms: one way, end to end; None: as before.
        symmetric: whether the way back changes as well.
    """

    src: str
    dst: str
    rate_mbps: float | None = None
    delay_ms: float | None = None
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.rate_mbps is None and self.delay_ms is None:
            raise InputError(
                f"{self.label}: nothing about it is otherwise — give rate_mbps or delay_ms"
            )
        if self.rate_mbps is not None and not self.rate_mbps > 0:
            raise InputError(f"{self.label}: {self.rate_mbps} Mbit/s is no rate — give one above 0")
        if self.delay_ms is not None and not 0 <= self.delay_ms < float("inf"):
            raise InputError(
                f"{self.label}: {self.delay_ms} ms is no delay — give one of 0 or more"
            )

    @property
    def label(self) -> str:
        """The link, for messages."""
        return f"{self.src} to {self.dst}"

    def applies_to(self, ends: HopEnds, tiers: Mapping[str, str]) -> bool:
        """Whether it is about the way from one host to another."""
        ways = [ends, ends[::-1]] if self.symmetric else [ends]
        return any(
            self._matches(self.src, src, tiers) and self._matches(self.dst, dst, tiers)
            for src, dst in ways
        )

    @staticmethod
    def _matches(name: str, host: str, tiers: Mapping[str, str]) -> bool:
        return name in {host, tiers.get(host)}


@dataclass(frozen=True)
class NetworkHop:
    """One way between two hosts: what it carries at most, and the round trip over it."""

    ends: HopEnds
    rate_mbps: float
    rtt_ms: float

    def with_changes(self, changes: Sequence[LinkChange], tiers: Mapping[str, str]) -> NetworkHop:
        """The same after the changes; a delay one way is half a round trip, or a part of it where
        the way back stays.
        """
        hop = self
        for change in changes:
            if not change.applies_to(hop.ends, tiers):
                continue
            rate = hop.rate_mbps if change.rate_mbps is None else change.rate_mbps
            rtt = hop.rtt_ms
            if change.delay_ms is not None:
                rtt = 2.0 * change.delay_ms if change.symmetric else change.delay_ms + rtt / 2.0
            hop = replace(hop, rate_mbps=rate, rtt_ms=rtt)
        return hop

    def part_s(self, part_bytes: float) -> float:
        """Seconds that a part of a ring's step takes it."""
        half_s = part_bytes / 2.0 * 8e-6 / self.rate_mbps
        return max(2.0 * half_s, half_s + self.rtt_ms * 1e-3)

    def slowed_to(self, part_s: float, part_bytes: float) -> NetworkHop:
        """The same with the rate at which a part takes so long."""
        half_bits, rtt_s = part_bytes * 4e-6, self.rtt_ms * 1e-3
        half_s = part_s / 2.0 if part_s >= 2.0 * rtt_s else max(part_s - rtt_s, 1e-9)
        return replace(self, rate_mbps=min(self.rate_mbps, half_bits / half_s))


def compute_ring_finish_s(
    arrival_s: FloatArray, hops: Sequence[NetworkHop], payload_bytes: float
) -> FloatArray:
    """When hosts are through with an all-reduce over a ring.

    Args:
        arrival_s: when each came to it, [E, n], in the order of the ring: the i-th sends over
            `hops[i]` to the next.
        hops: the links, n of them, two at least.
        payload_bytes: what is reduced.

    Returns:
        When each was through, [E, n].
    """
    count = len(hops)
    half_s = np.array([payload_bytes / count * 4e-6 / hop.rate_mbps for hop in hops])
    way_s = np.array([hop.rtt_ms / 2e3 for hop in hops])
    done, sent = arrival_s, np.full_like(arrival_s, -np.inf)
    for _ in range(2 * (count - 1)):
        waited_for = np.roll(done, -1, axis=1) + way_s
        sent = np.maximum(np.maximum(done, waited_for), sent + 2.0 * half_s)
        done = np.maximum(np.roll(sent + half_s + way_s, 1, axis=1), sent)
    finish: FloatArray = done + np.roll(half_s, 1)
    return finish


def estimate_hops(
    links: Sequence[Link], fidelity: Sequence[FidelityCheck], tiers: Mapping[str, str]
) -> dict[HopEnds, NetworkHop]:
    """Rates and round trips of the links that carried traffic.

    Round trips are the least that TCP saw. A rate is what a flow of its own reached before
    training, between the two hosts or two of the same tiers, where that was measured; else what TCP
    reached at best, which is less than the link can carry where the senders had little to send.

    Args:
        links: as measured.
        fidelity: what was measured before training; may be empty.
        tiers: of every host.
    """
    rates: dict[HopEnds, float] = {}
    for check in fidelity:
        if check.kind == "rate" and check.dst is not None:
            rates[check.src, check.dst] = check.measured
    between: dict[HopEnds, float] = {}
    for (src, dst), rate in rates.items():
        pair = (tiers.get(src, src), tiers.get(dst, dst))
        between[pair] = min(rate, between.get(pair, rate))
    found = {}
    for link in links:
        pair = (tiers.get(link.src, link.src), tiers.get(link.dst, link.dst))
        measured_rate = rates.get(link.ends) or between.get(pair) or between.get(pair[::-1])
        found[link.ends] = NetworkHop(link.ends, measured_rate or link.peak_mbps, link.min_rtt_ms)
    return found


def estimate_run_hops(run: RunData, tiers: Mapping[str, str]) -> dict[HopEnds, NetworkHop]:
    """Rates and round trips of a run's links (see `estimate_hops`).

    Raises:
        RunFolderError: no connection was sampled.
    """
    require_link_samples(run)
    return estimate_hops(
        measure_links(run.links, np.ones(len(run.links), dtype=np.bool_)), run.fidelity, tiers
    )


def find_ring_ends(
    carried: Mapping[HopEnds, float], hosts: Sequence[str]
) -> tuple[HopEnds, ...] | None:
    """The ring in which hosts send most of what they send.

    Args:
        carried: bytes from one host to another.
        hosts: those of the ranks.

    Returns:
        Its links in order, from the first host on; None where these do not make one ring of all
        hosts.
    """
    following = {}
    for host in hosts:
        to = {
            dst: count for (src, dst), count in carried.items() if src == host and dst in set(hosts)
        }
        if not to:
            return None
        following[host] = max(to, key=lambda dst: to[dst])
    ring = [hosts[0]]
    while following[ring[-1]] not in ring:
        ring.append(following[ring[-1]])
    if len(ring) != len(hosts) or following[ring[-1]] != ring[0] or len(hosts) < 2:
        return None
    return tuple((host, following[host]) for host in ring)


def require_link_samples(run: RunData) -> None:
    """Samples of connections are what links are known by.

    Raises:
        RunFolderError: there are none.
    """
    if not len(run.links):
        raise RunFolderError(
            f"{run.folder}: no connection was sampled (links.parquet), so nothing is known of any"
            " link"
        )


def require_known_ends(changes: Sequence[LinkChange], tiers: Mapping[str, str]) -> None:
    """Every name must be a host or a tier of the run.

    Raises:
        InputError: one is neither.
    """
    known = {*tiers, *tiers.values()}
    for change in changes:
        for name in (change.src, change.dst):
            if name not in known:
                label = ", ".join(sorted({tier for tier in tiers.values() if tier}))
                raise InputError(
                    f"{name}: no host or tier of this run — its tiers are {label or 'not known'}"
                )
