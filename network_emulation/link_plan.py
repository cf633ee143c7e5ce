"""What every link of the continuum is to be: the values that planning makes and the backends
apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from laggard.core.hosts import Host
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.jitter import REACH, Distribution

Pair = tuple[str, str]

QUEUE_PACKETS = 1000
"""Full-size packets of backlog a link holds before it drops (Linux's and netem's default), delay
line not counted."""

PACKET_BYTES = 1514
"""A full-size packet on the wire: MTU 1500 and the Ethernet header."""


@dataclass(frozen=True)
class Constraint:
    """What one direction of a link does to packets.

    Attributes:
        delay_ms: one-way delay, end to end.
        jitter_ms: how far each packet's delay varies; packets never overtake each other.
        rate_mbps: serialisation rate in Mbit/s of link-layer bytes; None is as fast as the machine.
        loss_percent: packets lost, in percent.
        distribution: of the delay, and what jitter means there (see `jitter`).
        burst_packets: packets lost in a row, on average (see `bursts`); 1 for independent losses.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    rate_mbps: float | None = None
    loss_percent: float = 0.0
    distribution: Distribution = "uniform"
    burst_packets: float = 1.0

    @property
    def is_neutral(self) -> bool:
        """Whether it constrains nothing."""
        return self.only_rate and self.rate_mbps is None

    @property
    def only_rate(self) -> bool:
        """Whether it neither delays nor loses."""
        return not (self.delay_ms or self.jitter_ms or self.loss_percent)

    @property
    def longest_delay_ms(self) -> float:
        """What no packet's delay exceeds, the wait for those before it left out."""
        return self.delay_ms + REACH[self.distribution] * self.jitter_ms


@dataclass(frozen=True)
class AccessLink:
    """A host's own link into the network, shared by all its peers (Mbit/s; None is unlimited)."""

    host: str
    up_mbps: float | None = None
    down_mbps: float | None = None


@dataclass(frozen=True)
class SharedLink:
    """One bottleneck that several ordered pairs share. A pair crosses at most one."""

    name: str
    pairs: frozenset[Pair]
    rate_mbps: float


@dataclass(frozen=True)
class LinkPlan:
    """All links of a continuum.

    Attributes:
        hosts: every host, in order.
        pairs: the constraint of every ordered pair that a rule or a later event names; neutral
            where only an event does.
        access: access links by host name.
        shared: shared bottlenecks.
    """

    hosts: tuple[Host, ...]
    pairs: Mapping[Pair, Constraint] = field(default_factory=dict)
    access: Mapping[str, AccessLink] = field(default_factory=dict)
    shared: tuple[SharedLink, ...] = ()

    def shared_by(self, pair: Pair) -> SharedLink | None:
        """The shared bottleneck that an ordered pair crosses."""
        return next((link for link in self.shared if pair in link.pairs), None)

    def expected(self, src: str, dst: str) -> Constraint:
        """What one flow alone should see from `src` to `dst`: the pair's constraint at the slowest
        rate on its way.
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
    """Ordered pairs of hosts that are alike: same tiers, same expected constraint.

    Attributes:
        src_layer: tier that sends.
        dst_layer: tier that receives.
        constraint: what one flow alone should see (see `LinkPlan.expected`).
        pairs: the ordered pairs, in the plan's order of hosts.
    """

    src_layer: str
    dst_layer: str
    constraint: Constraint
    pairs: tuple[Pair, ...]


def tier_pairs(plan: LinkPlan) -> tuple[TierPair, ...]:
    """Groups of alike ordered pairs, for measuring one of each; pairs that nothing constrains are
    left out.
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
    """A constraint in virtual units as the real one that a dilated machine must apply."""
    return replace(
        constraint,
        delay_ms=dilation.real_ms(constraint.delay_ms),
        jitter_ms=dilation.real_ms(constraint.jitter_ms),
        rate_mbps=_to_real_mbps(constraint.rate_mbps, dilation),
    )


def dilate_links(plan: LinkPlan, dilation: Dilation) -> LinkPlan:
    """The plan in real units: delays × D, rates / D, loss as it is."""
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
