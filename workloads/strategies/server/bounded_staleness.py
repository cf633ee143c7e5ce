"""Stale synchronous parallel: workers may be ahead of the slowest, but by no more than so many
steps.

Q. Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server",
NIPS 2013.

As `asynchronous`, but a worker begins step c only when all have finished step c - s - 1. With s
= 0: `parameter_server`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from laggard.core.run_schema import SyncMode
from laggard.workloads.strategies.base.parameters import BalancedParameters
from laggard.workloads.strategies.server.server_parameters import ServerParameters
from laggard.workloads.strategies.server.update_rule import BoundedStalenessRule, ServerUpdateRule


class BoundedStalenessParameters(BalancedParameters, ServerParameters):
    """Workers may be ahead of the slowest, by no more than so many steps (SSP: Ho et al., NIPS
    2013).
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
        """Every rank's own, unless nobody may be ahead."""
        return "asynchronous" if self.staleness else "lockstep"

    def create_update_rule(self, world_size: int) -> ServerUpdateRule:
        """Create the server's side (see `ServerParameters`)."""
        return BoundedStalenessRule(world_size, self.staleness)
