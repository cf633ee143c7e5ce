"""A server that keeps the model: workers push gradients and pull the model, all in step.

M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; with bulk
synchronous consistency.
"""

from __future__ import annotations

from laggard.workloads.strategies.base.parameters import ParameterServerParameters
from laggard.workloads.strategies.server.push_pull import PushPullWorker
from laggard.workloads.strategies.server.update_rule import BoundedStalenessRule, ServerUpdateRule


class ParameterServer(PushPullWorker):
    """w <- w - lr * (1/N) * sum of the gradients of all N samples of the batch, once the last of
    them is there.
    """

    @staticmethod
    def rule(_: ParameterServerParameters, world_size: int) -> ServerUpdateRule:
        """What the server does."""
        return BoundedStalenessRule(world_size, staleness=0)
