"""Backup workers: every step uses the first N gradients and drops those of the slowest workers.

J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz, "Revisiting distributed synchronous SGD",
arXiv:1604.00981, 2016.

w <- w - lr * (mean of the first N = workers - backups gradients on w). A worker that is too late
continues with the new w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.rules.backup_workers import BackupWorkersRule
from laggard.core.rules.server_rule import ServerUpdateRule
from laggard.core.run_schema import SyncMode
from laggard.workloads.strategies.base.parameters import BalancedParameters, RankProblem
from laggard.workloads.strategies.server.server_parameters import ServerParameters

if TYPE_CHECKING:
    from laggard.workloads.datasets.partition import Partition


class BackupWorkersParameters(BalancedParameters, ServerParameters):
    """Parameters of `backup_workers`: each step drops the gradients of the slowest workers.

    Chen et al. 2016.
    """

    reference: ClassVar[str] = "Chen et al. 2016"
    summary: ClassVar[str] = (
        "a server drops the gradients of the `backups` slowest workers in every step"
    )
    name: Literal["backup_workers"]
    backups: int = Field(
        default=1, ge=0, le=10_000, description="workers whose gradients a step does not wait for"
    )

    @property
    def sync_mode(self) -> SyncMode:
        """`asynchronous`, or `lockstep` without backups."""
        return "asynchronous" if self.backups else "lockstep"

    def create_update_rule(self, partition: Partition, _seed: int) -> ServerUpdateRule:
        """Create the server's rule (see `ServerParameters`)."""
        return BackupWorkersRule(partition.world_size, self.backups)

    def check_ranks(self, ranks: int) -> RankProblem | None:
        """Require that each step keeps at least one gradient."""
        if self.backups < ranks:
            return None
        rule = f"each step needs the gradient of at least one of the {ranks} workers"
        return RankProblem("backups", rule, ranks - 1)
