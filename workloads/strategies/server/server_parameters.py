"""Base of the parameters of strategies with a server; imports nothing heavy."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from laggard.workloads.strategies.base.parameters import CompressibleParameters

if TYPE_CHECKING:
    from laggard.core.rules.server_rule import ServerUpdateRule
    from laggard.workloads.datasets.partition import Partition
    from laggard.workloads.specification.training import OptimizerSpec
    from laggard.workloads.strategies.base.strategy import TrainingContext
    from laggard.workloads.strategies.server.push_pull import PushPullWorker


class ServerParameters(CompressibleParameters):
    """Base of strategies with a server: the workers are alike, only the server's rule differs."""

    uses_server: ClassVar[bool] = True
    supports_churn: ClassVar[bool] = True
    encodes_every_step: ClassVar[bool] = True

    def create_worker(self, context: TrainingContext) -> PushPullWorker:
        """Create one rank's side (see `Parameters`)."""
        from laggard.workloads.strategies.server.push_pull import PushPullWorker

        return PushPullWorker(self, context)

    @abstractmethod
    def create_update_rule(self, partition: Partition, _seed: int) -> ServerUpdateRule:
        """Create the rule by which the server applies gradients and answers workers.

        Args:
            partition: samples of the workers.
            _seed: seed of what the rule draws.
        """

    @property
    def server_optimizer(self) -> OptimizerSpec | None:
        """Optimizer of the server; None for that of `workload.yaml`."""
        return None
