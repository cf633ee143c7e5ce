"""Backup workers: every step takes the first N gradients that come and drops those of the slowest.

J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz, "Revisiting distributed synchronous SGD",
arXiv:1604.00981, 2016.
"""

from __future__ import annotations

from laggard.workloads.strategies.parameters import BackupWorkersParameters
from laggard.workloads.strategies.served import Served
from laggard.workloads.strategies.server_rule import BackupRule, ServerRule


class BackupWorkers(Served):
    """w <- w - lr * (mean of the first N = workers - backups gradients on w); who comes later goes
    on with the new w.
    """

    @staticmethod
    def rule(parameters: BackupWorkersParameters, world_size: int) -> ServerRule:
        """What the server does."""
        return BackupRule(world_size, parameters.backups)
