"""Backup workers: every step takes the first N gradients that come and drops those of the slowest.

J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz, "Revisiting distributed synchronous SGD",
arXiv:1604.00981, 2016.

w <- w - lr * (mean of the first N = workers - backups gradients on w); who comes later goes on
with the new w.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from laggard.core.run_schema import SyncMode
from laggard.workloads.strategies.base.parameters import BalancedParameters, RankProblem
from laggard.workloads.strategies.server.server_parameters import ServerParameters
from laggard.workloads.strategies.server.update_rule import BackupWorkersRule, ServerUpdateRule


class BackupWorkersParameters(BalancedParameters, ServerParameters):
    """Every step takes the first gradients that come and drops those of the slowest workers (Chen
    et al. 2016).
    """

    reference: ClassVar[str] = "Chen et al. 2016"
    summary: ClassVar[str] = "every step drops the gradients of the `backups` slowest workers"
    name: Literal["backup_workers"]
    backups: int = Field(
        default=1, ge=0, le=10_000, description="workers whose gradients a step does not wait for"
    )

    @property
    def sync_mode(self) -> SyncMode:
        """Every rank's own, unless all are waited for."""
        return "asynchronous" if self.backups else "lockstep"

    def create_update_rule(self, world_size: int) -> ServerUpdateRule:
        """Create the server's side (see `ServerParameters`)."""
        return BackupWorkersRule(world_size, self.backups)

    def check_ranks(self, ranks: int) -> RankProblem | None:
        """Require that at least one gradient remains in each step."""
        if self.backups < ranks:
            return None
        rule = f"of {ranks} workers one gradient at least is needed in each step"
        return RankProblem("backups", rule, f"make it {ranks - 1} or less")
