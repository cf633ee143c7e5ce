"""Synchronous parameter server: in every step all workers push gradients and pull the model.

M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014, with
bulk synchronous consistency.

w <- w - lr * (1/N) * (sum of the gradients of all N samples of the batch), after the last of them
has arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from laggard.core.rules.bounded_staleness import BoundedStalenessRule
from laggard.core.rules.server_rule import ServerUpdateRule
from laggard.workloads.strategies.base.parameters import BalancedParameters
from laggard.workloads.strategies.server.server_parameters import ServerParameters

if TYPE_CHECKING:
    from laggard.workloads.datasets.partition import Partition


class ParameterServerParameters(BalancedParameters, ServerParameters):
    """Parameters of `parameter_server`: workers push gradients and pull the model in lockstep.

    Li et al., OSDI 2014.
    """

    reference: ClassVar[str] = "Li et al., OSDI 2014"
    summary: ClassVar[str] = (
        "a server keeps the model; in every step all workers push gradients and pull the new model"
    )
    name: Literal["parameter_server"]

    def create_update_rule(self, partition: Partition, _seed: int) -> ServerUpdateRule:
        """Create the server's rule (see `ServerParameters`)."""
        return BoundedStalenessRule(partition.world_size, staleness=0)
