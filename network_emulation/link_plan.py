"""Link plan: the values that planning computes for every link and that the backends apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from laggard.core.hosts import Host
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.jitter import REACH, Distribution

Pair = tuple[str, str]

QUEUE_PACKETS = 1000
"""Full-size packets of backlog that a link holds before it drops (the default of Linux and
netem). Packets in the delay line do not count."""

PACKET_BYTES = 1514
"""Bytes of a full-size packet on the wire: MTU 1500 and the Ethernet header."""


@dataclass(frozen=True)
class Constraint:
    """Delay, jitter, rate and loss of one direction of a link.

    Attributes:
        delay_ms: one-way delay, end to end.
        jitter_ms: variation of each packet's delay; packets never overtake each other.
        rate_mbps: serialization rate in Mbit/s of link-layer bytes; None is as fast as the
            machine.
        loss_percent: packets lost, in percent.
        distribution: distribution of the delay, which also defines the unit of jitter (see
            `jitter`).
        burst_packets: mean number of consecutive lost packets (see `loss_bursts`); 1 for
            independent losses.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    rate_mbps: float | None = None
    loss_percent: float = 0.0
    distribution: Distribution = "uniform"
    burst_packets: float = 1.0

    @property
    def is_neutral(self) -> bool:
        """Return True if it constrains nothing."""
        return self.only_rate and self.rate_mbps is None

    @property
    def only_rate(self) -> bool:
        """Return True if it neither delays nor loses packets."""
        return not (self.delay_ms or self.jitter_ms or self.loss_percent)

    @property
    def longest_delay_ms(self) -> float:
        """Return the upper bound of a packet's delay, without its wait for earlier packets."""
        return self.delay_ms + REACH[self.distribution] * self.jitter_ms


@dataclass(frozen=True)
class AccessLink:
    """A host's own link into the network, shared by all its peers.

    Rates are in Mbit/s; None is unlimited.
    """

    host: str
    up_mbps: float | None = None
    down_mbps: float | None = None


@dataclass(frozen=True)
class SharedLink:
    """One bottleneck that several ordered pairs share; a pair crosses at most one."""

    name: str
    pairs: frozenset[Pair]
    rate_mbps: float


@dataclass(frozen=True)
class LinkPlan:
    """All links of a continuum.

    Attributes:
        hosts: every host, in order.
        pairs: constraint of every ordered pair that a rule or a later event names; neutral if only
            an event names it.
        access: access links by host name.
        shared: shared bottlenecks.
    """

    hosts: tuple[Host, ...]
    pairs: Mapping[Pair, Constraint] = field(default_factory=dict)
    access: Mapping[str, AccessLink] = field(default_factory=dict)
    shared: tuple[SharedLink, ...] = ()

    def shared_by(self, pair: Pair) -> SharedLink | None:
        """Return the shared bottleneck that an ordered pair crosses; None if it crosses none."""
        return next((link for link in self.shared if pair in link.pairs), None)

    def expected(self, src: str, dst: str) -> Constraint:
        """Return the constraint that a single flow from `src` to `dst` should see.

        It is the pair's constraint with the slowest rate on the path.
        """
        constraint = self.pairs.get((src, dst), Constraint())
        up, down = self.access.get(src), self.access.get(dst)
        shared = self.shared_by((src, dst))
        rates = (
            constraint.rate_mbps,
            up.up_mbps if up else None,
            down.down_mbps if down else None,
            shared.rate_mbps if shared else None,
        )
        known = [rate for rate in rates if rate is not None]
        return replace(constraint, rate_mbps=min(known, default=None))


@dataclass(frozen=True)
class TierPair:
    """Ordered pairs of hosts with the same tiers and the same expected constraint.

    Attributes:
        src_layer: tier that sends.
        dst_layer: tier that receives.
        constraint: constraint that a single flow should see (see `LinkPlan.expected`).
        pairs: the ordered pairs, in the plan's order of hosts.
    """

    src_layer: str
    dst_layer: str
    constraint: Constraint
    pairs: tuple[Pair, ...]


def tier_pairs(plan: LinkPlan) -> tuple[TierPair, ...]:
    """Return the groups of equal ordered pairs, so that one pair of each can be measured.

    Unconstrained pairs are left out.
    """
    groups: dict[tuple[str, str, Constraint], list[Pair]] = {}
    bottlenecked = {pair for link in plan.shared for pair in link.pairs}
    for src in plan.hosts:
        for dst in plan.hosts:
            pair = (src.name, dst.name)
            touched = (
                pair in plan.pairs
                or pair in bottlenecked
                or src.name in plan.access
                or dst.name in plan.access
            )
            if src is dst or not touched:
                continue
            constraint = plan.expected(*pair)
            if not constraint.is_neutral:
                groups.setdefault((src.layer, dst.layer, constraint), []).append(pair)
    return tuple(TierPair(*key, tuple(pairs)) for key, pairs in groups.items())


def dilate_constraint(constraint: Constraint, dilation: Dilation) -> Constraint:
    """Convert a constraint in virtual units to the real one that a dilated machine applies."""
    return replace(
        constraint,
        delay_ms=dilation.real_ms(constraint.delay_ms),
        jitter_ms=dilation.real_ms(constraint.jitter_ms),
        rate_mbps=_to_real_mbps(constraint.rate_mbps, dilation),
    )


def dilate_links(plan: LinkPlan, dilation: Dilation) -> LinkPlan:
    """Convert a plan to real units: delays × D, rates / D, losses unchanged."""
    access = {
        host: AccessLink(
            host, _to_real_mbps(link.up_mbps, dilation), _to_real_mbps(link.down_mbps, dilation)
        )
        for host, link in plan.access.items()
    }
    return replace(
        plan,
        pairs={
            pair: dilate_constraint(constraint, dilation) for pair, constraint in plan.pairs.items()
        },
        access=access,
        shared=tuple(
            replace(link, rate_mbps=dilation.real_mbps(link.rate_mbps)) for link in plan.shared
        ),
    )


def _to_real_mbps(rate_mbps: float | None, dilation: Dilation) -> float | None:
    return None if rate_mbps is None else dilation.real_mbps(rate_mbps)
