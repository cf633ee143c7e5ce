"""Rates and round trips of a run's links, and the duration of a ring all-reduce over them.

In a ring all-reduce of S bytes over n hosts (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69,
2009) every link carries 2 (n - 1) parts of S / n, one after the other. gloo sends a part as two
halves, each after the receiver has reported that it waits for it. A host starts its next part when
it has received one part and sent one. So no host is ever more than one part ahead of a neighbor,
and all hosts advance at the pace of the slowest link. A part takes the longer of two times: both
halves on the wire, or one round trip and one half. A host that arrives early completes a few parts
before the others arrive.
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
    """Changed rate or delay of one link, or of all links between two tiers.

    Attributes:
        src: name of the sending host or tier.
        dst: name of the receiving host or tier.
        rate_mbps: new rate; None keeps the measured one.
        delay_ms: new one-way delay, end to end; None keeps the measured one.
        symmetric: if true, the opposite direction changes as well.

    Examples:
        >>> faster = LinkChange("edge", "cloud", rate_mbps=400.0)
        >>> faster.delay_ms is None
        True
    """

    src: str
    dst: str
    rate_mbps: float | None = None
    delay_ms: float | None = None
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.rate_mbps is None and self.delay_ms is None:
            raise InputError(
                f"{self.label}: the change has neither a rate nor a delay — set rate_mbps or"
                " delay_ms"
            )
        if self.rate_mbps is not None and not self.rate_mbps > 0:
            raise InputError(
                f"{self.label}: rate_mbps is {self.rate_mbps} and must be greater than 0"
            )
        if self.delay_ms is not None and not 0 <= self.delay_ms < float("inf"):
            raise InputError(
                f"{self.label}: delay_ms is {self.delay_ms} and must be finite and at least 0"
            )

    @property
    def label(self) -> str:
        """Return the link's name for messages."""
        return f"{self.src} to {self.dst}"

    def applies_to(self, ends: HopEnds, tiers: Mapping[str, str]) -> bool:
        """Return True if the change applies to the direction from the first host to the second."""
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
    """One direction between two hosts: its highest rate, and the round trip over it."""

    ends: HopEnds
    rate_mbps: float
    rtt_ms: float

    def with_changes(self, changes: Sequence[LinkChange], tiers: Mapping[str, str]) -> NetworkHop:
        """Return the hop after the changes.

        A symmetric change of the delay sets the round trip to twice the delay. An asymmetric one
        adds the delay to half of the present round trip, because the opposite direction is
        unchanged.
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
        """Return the seconds that one part of a ring all-reduce takes over this hop."""
        half_s = part_bytes / 2.0 * 8e-6 / self.rate_mbps
        return max(2.0 * half_s, half_s + self.rtt_ms * 1e-3)

    def slowed_to(self, part_s: float, part_bytes: float) -> NetworkHop:
        """Return the hop with the rate at which one part takes `part_s` seconds."""
        half_bits, rtt_s = part_bytes * 4e-6, self.rtt_ms * 1e-3
        half_s = part_s / 2.0 if part_s >= 2.0 * rtt_s else max(part_s - rtt_s, 1e-9)
        return replace(self, rate_mbps=min(self.rate_mbps, half_bits / half_s))


def compute_ring_finish_s(
    arrival_s: FloatArray, hops: Sequence[NetworkHop], payload_bytes: float
) -> FloatArray:
    """Return the times at which hosts finish an all-reduce over a ring.

    Args:
        arrival_s: time at which each host arrives, [E, n], in the order of the ring: the i-th host
            sends over `hops[i]` to the next.
        hops: the n links of the ring; at least two.
        payload_bytes: size of the reduced data.

    Returns:
        Time at which each host finishes, [E, n].
    """
    count = len(hops)
    half_s = np.array([payload_bytes / count * 4e-6 / hop.rate_mbps for hop in hops])
    way_s = np.array([hop.rtt_ms / 2e3 for hop in hops])
    done, sent = arrival_s, np.full_like(arrival_s, -np.inf)
    # One iteration per part. `done` is the time at which a host may start its next part, `sent`
    # the time at which its first half may leave: the receiver has asked for it, and the sender's
    # last part has left the link.
    for _ in range(2 * (count - 1)):
        waited_for = np.roll(done, -1, axis=1) + way_s
        sent = np.maximum(np.maximum(done, waited_for), sent + 2.0 * half_s)
        done = np.maximum(np.roll(sent + half_s + way_s, 1, axis=1), sent)
    finish: FloatArray = done + np.roll(half_s, 1)
    return finish


def estimate_hops(
    links: Sequence[Link], fidelity: Sequence[FidelityCheck], tiers: Mapping[str, str]
) -> dict[HopEnds, NetworkHop]:
    """Return the rates and round trips of the links that carried traffic.

    The round trip is the smallest that TCP measured. The rate is the one that a single flow
    reached before training, between the same two hosts or two hosts of the same tiers, if that was
    measured. Otherwise it is the highest rate that TCP reached, which is too low if the senders
    had little to send.

    Args:
        links: measured links of the run.
        fidelity: measurements made before training; may be empty.
        tiers: tier of every host.
    """
    rates: dict[HopEnds, float] = {}
    for check in fidelity:
        if check.kind == "rate" and check.dst is not None:
            rates[check.src, check.dst] = check.measured
    # Links of one tier pair have the lowest rate that was measured between the tiers.
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
    """Return the rates and round trips of a run's links (see `estimate_hops`).

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
    """Return the ring over which the hosts send most of their bytes.

    Args:
        carried: bytes sent from one host to another.
        hosts: hosts of the ranks.

    Returns:
        The links of the ring in order, beginning at the first host, or None if the links with the
        most bytes do not form one ring of all hosts.
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
    """Raise an error unless the run has samples of connections, the only source about links.

    Raises:
        RunFolderError: there are no samples.
    """
    if not len(run.links):
        raise RunFolderError(
            f"{run.folder}: no connection was sampled (links.parquet has no rows), so the rates and"
            " round trips of the links are unknown"
        )


def require_known_ends(changes: Sequence[LinkChange], tiers: Mapping[str, str]) -> None:
    """Raise an error unless every name in the changes is a host or a tier of the run.

    Raises:
        InputError: a name is neither.
    """
    known = {*tiers, *tiers.values()}
    for change in changes:
        for name in (change.src, change.dst):
            if name not in known:
                label = ", ".join(sorted({tier for tier in tiers.values() if tier}))
                raise InputError(
                    f"{name} is no host or tier of this run — use a host or one of its tiers:"
                    f" {label or 'none recorded'}"
                )
