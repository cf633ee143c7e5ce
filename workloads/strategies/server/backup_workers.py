"""Backup workers: every step takes the first N gradients that come and drops those of the slowest.

J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz, "Revisiting distributed synchronous SGD",
arXiv:1604.00981, 2016.
"""

from __future__ import annotations

from laggard.workloads.strategies.base.parameters import BackupWorkersParameters
from laggard.workloads.strategies.server.push_pull import PushPullWorker
from laggard.workloads.strategies.server.update_rule import BackupWorkersRule, ServerUpdateRule


class BackupWorkers(PushPullWorker):
    """w <- w - lr * (mean of the first N = workers - backups gradients on w); who comes later goes
    on with the new w.
    """

    @staticmethod
    def rule(parameters: BackupWorkersParameters, world_size: int) -> ServerUpdateRule:
        """What the server does."""
        return BackupWorkersRule(world_size, parameters.backups)
