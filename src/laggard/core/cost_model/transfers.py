"""Bytes and rounds of a model's exchange among workers, as demands of one step.

All links have the same rate and latency; with different ones, those of the slowest link give the
seconds of a collective in which every worker waits for its neighbor. A link that several transfers
use at once is given with `flows`: each of them has an equal part of its rate.

Source of the ring: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", J. Parallel Distrib. Comput. 69(2), 2009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from laggard.core.cost_model.demand import TransferDemand, require_quantity


@dataclass(frozen=True)
class LinkOffer:
    """Rate and latency that a link offers to a transfer.

    Attributes:
        rate_mbps: rate of the link in Mbit/s.
        latency_ms: one-way delay in ms.
        flows: number of equal transfers that share the link.

    Examples:
        >>> LinkOffer(rate_mbps=100.0, latency_ms=5.0, flows=4).transfer(1e6, rounds=2).rate_mbps
        25.0
    """

    rate_mbps: float
    latency_ms: float = 0.0
    flows: int = 1

    def __post_init__(self) -> None:
        require_quantity(
            "flows", self.flows, "give the transfers that share the link", positive=True
        )

    def transfer(self, sent_bytes: float, rounds: float) -> TransferDemand:
        """Return the demand of sending so many bytes in so many rounds over this link."""
        return TransferDemand(sent_bytes, self.rate_mbps / self.flows, self.latency_ms, rounds)


def compute_ring_transfer(payload_bytes: float, workers: int, link: LinkOffer) -> TransferDemand:
    """Return the demand of a ring all-reduce.

    Every worker sends 2 (n - 1) parts of an n-th of the payload, one after the other.
    """
    _require_workers(workers)
    rounds = 2 * (workers - 1)
    return link.transfer(payload_bytes * rounds / workers, rounds)


def compute_tree_transfer(payload_bytes: float, workers: int, link: LinkOffer) -> TransferDemand:
    """Return the demand of a reduction along a binomial tree, and of a broadcast back.

    On every level the whole payload passes over a link.
    """
    _require_workers(workers)
    rounds = 2 * math.ceil(math.log2(workers))
    return link.transfer(payload_bytes * rounds, rounds)


def compute_server_transfer(payload_bytes: float, workers: int, link: LinkOffer) -> TransferDemand:
    """Return the demand of a push to a parameter server and a pull from it.

    The payloads of all workers pass over the server's link, first all pushes and then all pulls.
    """
    _require_workers(workers)
    return link.transfer(2 * payload_bytes * workers, 2)


def compute_peer_transfer(payload_bytes: float, peers: int, link: LinkOffer) -> TransferDemand:
    """Return the demand of sending the payload to each of some peers over the worker's own link."""
    require_quantity("peers", peers, "give the peers of one worker")
    return link.transfer(payload_bytes * peers, 1 if peers else 0)


def _require_workers(workers: int) -> None:
    require_quantity("workers", workers, "give the workers that exchange models", positive=True)
