"""A server that keeps the model and waits for nobody: every gradient is applied when it comes,
however old the model that it is of.

M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; with
eventual consistency.
"""

from __future__ import annotations

from laggard.workloads.strategies.base.parameters import AsynchronousParameters
from laggard.workloads.strategies.server.push_pull import PushPullWorker
from laggard.workloads.strategies.server.update_rule import BoundedStalenessRule, ServerUpdateRule


class Asynchronous(PushPullWorker):
    """w <- w - lr * (n_k/N) * g_k(w of when worker k read it), whenever a g_k comes; n_k of a
    batch's N samples are worker k's.
    """

    @staticmethod
    def rule(_: AsynchronousParameters, world_size: int) -> ServerUpdateRule:
        """What the server does."""
        return BoundedStalenessRule(world_size, staleness=None)
