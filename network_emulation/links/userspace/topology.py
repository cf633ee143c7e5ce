"""Topology of the emulator: the queues that packets of each ordered pair of hosts cross."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laggard.network_emulation.link_plan import (
    PACKET_BYTES,
    QUEUE_PACKETS,
    Constraint,
    LinkPlan,
    Pair,
)
from laggard.network_emulation.links.userspace.queueing import Route, Stage

QUEUE_BYTES = QUEUE_PACKETS * PACKET_BYTES
"""Backlog that a stage holds before it drops; packets in the delay line do not count."""


@dataclass(frozen=True)
class Topology:
    """Routes of a plan.

    Attributes:
        routes: route of every ordered pair of hosts. `Route.port` is the receiver's position among
            the hosts, `Route.index` the pair's position in `pairs`.
        pairs: every ordered pair of hosts, senders in the plan's order.
    """

    routes: Mapping[Pair, Route]
    pairs: tuple[Pair, ...]


def ordered_pairs(plan: LinkPlan) -> tuple[Pair, ...]:
    """Return every ordered pair of different hosts of a plan."""
    names = [host.name for host in plan.hosts]
    return tuple((src, dst) for src in names for dst in names if src != dst)


def build_topology(plan: LinkPlan) -> Topology:
    """Return queues for every ordered pair of a plan.

    The pairs have no constraints of their own yet; `LinkModel.constrain` sets them.
    """
    pairs = ordered_pairs(plan)
    port = {host.name: i for i, host in enumerate(plan.hosts)}
    up = {
        name: Stage(link.up_mbps, QUEUE_BYTES)
        for name, link in plan.access.items()
        if link.up_mbps is not None
    }
    down = {
        name: Stage(link.down_mbps, QUEUE_BYTES)
        for name, link in plan.access.items()
        if link.down_mbps is not None
    }
    shared = {
        pair: stage
        for link in plan.shared
        for stage in [Stage(link.rate_mbps, QUEUE_BYTES)]
        for pair in link.pairs
    }
    routes: dict[Pair, Route] = {}
    for index, (src, dst) in enumerate(pairs):
        own = Stage(None)
        # The order in which packets cross the stages is part of the model (see the package).
        crossed = (up.get(src), own, shared.get((src, dst)), down.get(dst))
        routes[src, dst] = Route(
            index, port[dst], [stage for stage in crossed if stage is not None], own
        )
    return Topology(routes, pairs)


def lossy_senders(constraints: Mapping[Pair, Constraint]) -> frozenset[str]:
    """Return the hosts that send over a link that loses packets.

    They must not send super-packets, because a lost one would be a burst of losses.
    """
    return frozenset(
        src for (src, _), constraint in constraints.items() if constraint.loss_percent > 0
    )
