"""A server that keeps the model: workers push gradients and pull the model, all in step.

M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; with bulk
synchronous consistency.

w <- w - lr * (1/N) * sum of the gradients of all N samples of the batch, once the last of them
is there.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from laggard.workloads.strategies.base.parameters import BalancedParameters
from laggard.workloads.strategies.server.server_parameters import ServerParameters
from laggard.workloads.strategies.server.update_rule import BoundedStalenessRule, ServerUpdateRule


class ParameterServerParameters(BalancedParameters, ServerParameters):
    """A server keeps the model; workers push gradients and pull it, all in step (Li et al., OSDI
    2014).
    """

    reference: ClassVar[str] = "Li et al., OSDI 2014"
    summary: ClassVar[str] = (
        "a server keeps the model; workers push gradients and pull the model, all in the same step"
    )
    name: Literal["parameter_server"]

    def create_update_rule(self, world_size: int) -> ServerUpdateRule:
        """Create the server's side (see `ServerParameters`)."""
        return BoundedStalenessRule(world_size, staleness=0)
