"""Interface of policies: the jobs that are present in, the time of each on each type out."""

from __future__ import annotations

from typing import Protocol

from laggard.core.cost_model.arrays import FloatArray
from laggard.workloads.scheduling.cluster_jobs import ClusterState


class Policy(Protocol):
    """Function from the state of a cluster to an allocation, which is the same for equal states.

    Attributes:
        name: name of the policy.
        aware: whether throughputs count. If not, types take jobs in an order that is drawn anew
            for every round.
        in_turn: whether a job without an allocation may not run, even if devices are idle.
    """

    @property
    def name(self) -> str: ...

    @property
    def aware(self) -> bool: ...

    @property
    def in_turn(self) -> bool: ...

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return the part of the time that each job runs on each type, [J, M]."""
        ...
