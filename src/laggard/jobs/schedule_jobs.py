"""Schedules of the jobs of a cluster by one policy or several, and what each costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.rules.fairness import compute_jain_index
from laggard.jobs.cluster_file import SharedCluster
from laggard.workloads.scheduling.cluster_simulation import ClusterResult, simulate_cluster
from laggard.workloads.scheduling.policy import Policy


@dataclass(frozen=True)
class ClusterSchedule:
    """Jobs of a cluster as a policy runs them.

    Attributes:
        policy: name of the policy.
        result: who ran where and when.
        utilization: part of the makespan in which the devices of each type had a job, [M].
        cost: price of the devices while they had a job.
    """

    policy: str
    result: ClusterResult
    utilization: FloatArray
    cost: float

    @property
    def mean_completion_s(self) -> float:
        """Return the mean seconds from arrival to end."""
        return float(self.result.completion_s.mean())

    @property
    def finish_time_ratios(self) -> FloatArray:
        """Return each job's time, relative to that on an equal part of the cluster, [J]."""
        ratios: FloatArray = self.result.completion_s / self.result.isolated_s
        return ratios

    @property
    def fairness(self) -> float:
        """Return Jain's index of the jobs' speeds, relative to an equal part of the cluster."""
        return compute_jain_index((1.0 / self.finish_time_ratios).tolist())


def schedule_jobs(
    cluster: SharedCluster, policies: Sequence[Policy]
) -> tuple[ClusterSchedule, ...]:
    """Simulate the jobs of a cluster by each policy.

    Raises:
        InputError: a policy needs what the cluster lacks, such as prices.
    """
    counts = np.array([each.count for each in cluster.types], dtype=np.float64)
    prices = np.array([each.price_per_hour for each in cluster.types])
    found = []
    for policy in policies:
        result = simulate_cluster(
            cluster.jobs, cluster.types, policy, cluster.options, cluster.pairs
        )
        device_s = result.device_s
        first_s = float(result.arrival_s.min())
        found.append(
            ClusterSchedule(
                policy.name,
                result,
                device_s / counts / (result.makespan_s - first_s),
                float(device_s @ prices) / 3600.0,
            )
        )
    return tuple(found)
