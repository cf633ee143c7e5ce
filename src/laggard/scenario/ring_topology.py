"""Ranks in the order of a ring over the fastest links: `placement: {order: topology}`.

The links count as they are planned, without later events.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.core.hosts import Host
from laggard.network_emulation.link_plan import LinkPlan
from laggard.workloads.plan import place
from laggard.workloads.scheduling.ring_order import UNSHARED, RingLinks, order_ring
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
    count = len(hosts)
    rate_mbps, rtt_ms = np.full((count, count), np.inf), np.zeros((count, count))
    shared = np.full((count, count), UNSHARED, dtype=np.int64)
    place_of = {host.name: place for place, host in enumerate(hosts)}
    for (src, dst), constraint in links.pairs.items():
        if src in place_of and dst in place_of:
            here, there = place_of[src], place_of[dst]
            rate_mbps[here, there] = constraint.rate_mbps or np.inf
            rtt_ms[here, there] += constraint.delay_ms
            rtt_ms[there, here] += constraint.delay_ms
    for name, access in links.access.items():
        if name in place_of:
            here = place_of[name]
            rate_mbps[here] = np.minimum(rate_mbps[here], access.up_mbps or np.inf)
            rate_mbps[:, here] = np.minimum(rate_mbps[:, here], access.down_mbps or np.inf)
    for number, link in enumerate(links.shared):
        for src, dst in link.pairs:
            if src in place_of and dst in place_of:
                shared[place_of[src], place_of[dst]] = number
    return RingLinks(
        rate_mbps,
        rtt_ms,
        shared,
        np.array([link.rate_mbps for link in links.shared], dtype=np.float64),
        MODEL_BYTES / count,
    )
