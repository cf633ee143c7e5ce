"""Stale synchronous parallel: no worker is more than s steps ahead of the slowest.

Q. Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server",
NIPS 2013.

It works as `asynchronous`, but a worker begins step c only after all workers have finished step c
- s - 1. With s = 0 it is `parameter_server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.rules.bounded_staleness import BoundedStalenessRule
from laggard.core.rules.server_rule import ServerUpdateRule
from laggard.core.run_schema import SyncMode
from laggard.workloads.strategies.base.parameters import BalancedParameters
from laggard.workloads.strategies.server.server_parameters import ServerParameters

if TYPE_CHECKING:
    from laggard.workloads.datasets.partition import Partition


class BoundedStalenessParameters(BalancedParameters, ServerParameters):
    """Parameters of `bounded_staleness`: workers may be a few steps ahead of the slowest.

    This is SSP (Ho et al., NIPS 2013).
    """

    reference: ClassVar[str] = "SSP: Ho et al., NIPS 2013"
    summary: ClassVar[str] = (
        "as `asynchronous`, but no worker is more than `staleness` steps ahead of the slowest"
    )
    name: Literal["bounded_staleness"]
    staleness: int = Field(
        default=4,
        ge=0,
        le=100_000_000,
        description="steps that a worker may be ahead of the slowest",
    )

    @property
    def sync_mode(self) -> SyncMode:
        """`asynchronous`, or `lockstep` if no worker may be ahead."""
        return "asynchronous" if self.staleness else "lockstep"

    def create_update_rule(self, partition: Partition, _seed: int) -> ServerUpdateRule:
        """Create the server's rule (see `ServerParameters`)."""
        return BoundedStalenessRule(partition.world_size, self.staleness)
