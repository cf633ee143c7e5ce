"""Links between hosts as the messages of any strategy find them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from laggard.core.cost_model.links import HopEnds, NetworkHop
from laggard.core.errors import RunFolderError

FRAMING_OVERHEAD = 1514 / 1448
"""Bytes on the wire per byte of payload, because of the headers of full-size TCP segments."""


@dataclass(frozen=True)
class Bottleneck:
    """Rate that several links share."""

    name: str
    ends: Container[HopEnds]
    rate_mbps: float


@dataclass(frozen=True)
class SlowPeriod:
    """Period in which some links had a lower rate, in raw seconds."""

    first_s: float
    last_s: float
    ends: Container[HopEnds]
    rate_mbps: float


@dataclass(frozen=True)
class SimulatedNetwork:
    """Network between the hosts of a simulation.

    Attributes:
        hops: link from one host to another; messages within a host take no time.
        bottlenecks: rates that several links share.
        slow_periods: periods in which some links had a lower rate.
    """

    hops: Mapping[HopEnds, NetworkHop]
    bottlenecks: tuple[Bottleneck, ...] = ()
    slow_periods: tuple[SlowPeriod, ...] = field(default=())

    def hop(self, ends: HopEnds, at_s: float = 0.0) -> NetworkHop:
        """Return a link as it is at a time, for a message that has it for itself.

        Raises:
            RunFolderError: the link was not measured.
        """
        # Messages within a host use no link.
        if ends[0] == ends[1]:
            return NetworkHop(ends, float("inf"), 0.0)
        if ends not in self.hops:
            raise RunFolderError(
                f"the link from {ends[0]} to {ends[1]} is unknown: its round trip and rate were not"
                " measured before training, and no traffic on it was sampled — record the run"
                " again with a version that verifies links"
            )
        hop = self.hops[ends]
        if not self.slow_periods:
            return hop
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
        """Return the links of a ring: each host sends to the next, and the last to the first.

        Links that share a bottleneck have an equal part of its rate each.
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
