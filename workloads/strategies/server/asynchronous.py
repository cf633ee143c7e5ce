"""A server that keeps the model and waits for nobody: every gradient is applied when it comes,
however old the model that it is of.

M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; with
eventual consistency.

w <- w - lr * (n_k/N) * g_k(w of when worker k read it), whenever a g_k comes; n_k of a batch's
N samples are worker k's.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from laggard.core.run_schema import SyncMode
from laggard.workloads.strategies.server.server_parameters import ServerParameters
from laggard.workloads.strategies.server.update_rule import BoundedStalenessRule, ServerUpdateRule


class AsynchronousParameters(ServerParameters):
    """A server applies every gradient when it comes, and nobody waits for anybody (Li et al., OSDI
    2014).
    """

    reference: ClassVar[str] = "Li et al., OSDI 2014"
    summary: ClassVar[str] = (
        "a server keeps the model and applies every gradient when it arrives; no worker waits"
    )
    name: Literal["asynchronous"]

    @property
    def sync_mode(self) -> SyncMode:
        """Every rank's own."""
        return "asynchronous"

    def create_update_rule(self, world_size: int) -> ServerUpdateRule:
        """Create the server's side (see `ServerParameters`)."""
        return BoundedStalenessRule(world_size, staleness=None)
