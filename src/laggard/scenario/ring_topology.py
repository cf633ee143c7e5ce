"""Ranks in the order of a ring over the fastest links: `placement: {order: topology}`.

The links count as they are planned, without later events.
"""

from __future__ import annotations

from collections.abc import Sequence

from laggard.core.cost_model.links import NetworkHop
from laggard.core.hosts import Host
from laggard.network_emulation.link_plan import LinkPlan
from laggard.workloads.plan import place
from laggard.workloads.scheduling.ring_order import RingLinks, order_ring
from laggard.workloads.workload import Workload

MODEL_BYTES = 4e6
"""Size of the model for which transfers are compared: rates decide for larger ones, and delays for
smaller ones. A model is not built before the training begins, since that may be a user's code."""


def resolve_order(workload: Workload, hosts: Sequence[Host], links: LinkPlan) -> Workload:
    """Return the workload with the hosts of its workers one by one, in the order of the ring.

    Args:
        workload: workload whose placement is valid, and whose order is `topology`.
        hosts: all hosts of the continuum.
        links: plan of all links.
    """
    placement = workload.placement
    chosen = tuple(dict.fromkeys(place(placement, hosts)))
    order = order_ring(build_ring_links(chosen, links))
    names = tuple(chosen[each].name for each in order)
    return workload.model_copy(
        update={"placement": placement.model_copy(update={"workers": names})}
    )


def build_ring_links(hosts: Sequence[Host], links: LinkPlan) -> RingLinks:
    """Return the planned links between some hosts."""
    names = [host.name for host in hosts]
    pairs = {
        (here, there): (src, dst)
        for here, src in enumerate(names)
        for there, dst in enumerate(names)
        if here != there
    }
    numbers = {each: number for number, link in enumerate(links.shared) for each in link.pairs}
    return RingLinks(
        [
            [_plan_hop(names[here], names[there], links) for there in range(len(names))]
            for here in range(len(names))
        ],
        {place: numbers[ends] for place, ends in pairs.items() if ends in numbers},
        [link.rate_mbps for link in links.shared],
        MODEL_BYTES / len(hosts),
    )


def _plan_hop(src: str, dst: str, links: LinkPlan) -> NetworkHop | None:
    """Return the hop that one transfer has for itself; None from a host to itself."""
    if src == dst:
        return None
    there, back = links.expected(src, dst), links.expected(dst, src)
    rate_mbps = float("inf") if there.rate_mbps is None else there.rate_mbps
    return NetworkHop((src, dst), rate_mbps, there.delay_ms + back.delay_ms)
