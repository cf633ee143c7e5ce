"""Asynchronous parameter server: it applies every gradient on arrival.

A gradient may be of an older model; no worker waits. M. Li et al., "Scaling distributed machine
learning with the parameter server", OSDI 2014, with eventual consistency.

w <- w - lr * (n_k/N) * g_k(the w that worker k read), on arrival of each g_k. Of a batch's N
samples, n_k belong to worker k.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from laggard.core.rules.bounded_staleness import BoundedStalenessRule
from laggard.core.rules.server_rule import ServerUpdateRule
from laggard.core.run_schema import SyncMode
from laggard.workloads.strategies.server.server_parameters import ServerParameters

if TYPE_CHECKING:
    from laggard.workloads.datasets.partition import Partition


class AsynchronousParameters(ServerParameters):
    """Parameters of `asynchronous`: a server applies every gradient on arrival.

    No worker waits for another (Li et al., OSDI 2014).
    """

    reference: ClassVar[str] = "Li et al., OSDI 2014"
    summary: ClassVar[str] = (
        "a server keeps the model and applies every gradient on arrival; no worker waits"
    )
    name: Literal["asynchronous"]

    @property
    def sync_mode(self) -> SyncMode:
        """Always `asynchronous`."""
        return "asynchronous"

    def create_update_rule(self, partition: Partition, _seed: int) -> ServerUpdateRule:
        """Create the server's rule (see `ServerParameters`)."""
        return BoundedStalenessRule(partition.world_size, staleness=None)
