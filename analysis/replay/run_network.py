"""Links of a run as the messages of any strategy would find them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.links import measure_links
from laggard.analysis.replay.link_model import estimate_hops
from laggard.analysis.tables.load_run import RunData
from laggard.core.cost_model.links import HopEnds, NetworkHop
from laggard.core.errors import RunFolderError
from laggard.core.simulation.network import Bottleneck, SimulatedNetwork


def build_network(run: RunData, bottlenecks: tuple[Bottleneck, ...] = ()) -> SimulatedNetwork:
    """Build the network of a run from its measurements.

    Round trips and rates are those measured before training, between the two hosts or two hosts of
    the same tiers. A link that was not measured but carried traffic has the values that TCP
    reported. In a run that was verified, a link without a requested limit is as fast as the
    machine.

    Args:
        run: a loaded run.
        bottlenecks: rates that several links share, which the run's tables do not contain.

    Raises:
        RunFolderError: no link was measured.
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
            f"{run.folder}: neither fidelity.json nor links.parquet has a measurement of a link,"
            " which the simulation of other strategies needs"
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
            # After verification, an absent value means that no limit was requested for the link.
            if verified or (rtt_ms is not None and rate_mbps is not None):
                hops[src, dst] = NetworkHop((src, dst), rate_mbps or float("inf"), rtt_ms or 0.0)
    return SimulatedNetwork(hops, bottlenecks)


@dataclass(frozen=True)
class _TierEstimates:
    """Measured values of links, found by their hosts or else by the tiers of these."""

    known: Mapping[HopEnds, float]
    tiers: Mapping[str, str]

    def find(self, ends: HopEnds) -> float | None:
        """Return the value of a link, of its opposite direction, or the median of its tier pair.

        The result is None if none of them was measured.
        """
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
    """Return all links between the tiers of two hosts, in both directions."""
    pair = {tiers.get(end, end) for end in ends}
    return frozenset(
        (src, dst)
        for src in tiers
        for dst in tiers
        if src != dst and {tiers[src], tiers[dst]} == pair
    )


def require_named_links(causes: Sequence[Cause], folder: object) -> None:
    """Raise an error unless the slow link of every temporary slowness is known.

    Raises:
        RunFolderError: a cause names no link.
    """
    for cause in causes:
        if (
            cause.spec.uses_links
            and cause.kind == "dynamic"
            and cause.link is None
            and cause.rank is None
        ):
            raise RunFolderError(
                f"{folder}: transfers were slow from step {cause.first} to {cause.last}, and the"
                " slow link is unknown, so its effect on other strategies' messages cannot be"
                " simulated"
            )
