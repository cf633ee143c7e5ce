"""Stale synchronous parallel: workers may be ahead of the slowest, but by no more than so many
steps.

Q. Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server",
NIPS 2013.
"""

from __future__ import annotations

from laggard.workloads.strategies.base.parameters import BoundedStalenessParameters
from laggard.workloads.strategies.server.push_pull import PushPullWorker
from laggard.workloads.strategies.server.update_rule import BoundedStalenessRule, ServerUpdateRule


class BoundedStaleness(PushPullWorker):
    """As `asynchronous`, but a worker begins step c only when all have finished step c - s - 1.
    With s = 0: `parameter_server`.
    """

    @staticmethod
    def rule(parameters: BoundedStalenessParameters, world_size: int) -> ServerUpdateRule:
        """What the server does."""
        return BoundedStalenessRule(world_size, parameters.staleness)
