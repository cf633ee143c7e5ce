"""Schedules of the jobs of a cluster by one policy or several, and what each costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.selection.fairness import compute_jain_index
from laggard.jobs.cluster_file import SharedCluster
from laggard.jobs.execute_jobs import OVERRUN_STEPS, ExecutedTurn, RoundExecutor
from laggard.workloads.scheduling.cluster_run import ClusterResult, run_cluster
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


@dataclass(frozen=True)
class ExecutedSchedule:
    """Jobs of a cluster as they were simulated and as they ran.

    Attributes:
        simulated: schedule by predicted throughputs.
        executed: schedule by what the jobs did.
        turns: turns in the order in which they ended.
        notes: sentences about how jobs went on in their turns.
    """

    simulated: ClusterSchedule
    executed: ClusterSchedule
    turns: tuple[ExecutedTurn, ...]
    notes: tuple[str, ...] = ()

    @property
    def share_differences(self) -> FloatArray:
        """Return by how much of all devices' time each job received more than simulated, [J]."""
        shares = [
            each.result.received_s.sum(axis=1) / each.result.received_s.sum()
            for each in (self.executed, self.simulated)
        ]
        difference: FloatArray = shares[0] - shares[1]
        return difference


def schedule_jobs(
    cluster: SharedCluster, policies: Sequence[Policy]
) -> tuple[ClusterSchedule, ...]:
    """Simulate the jobs of a cluster by each policy.

    Raises:
        InputError: a policy needs what the cluster lacks, such as prices.
    """
    return tuple(
        _schedule(
            cluster,
            policy.name,
            run_cluster(cluster.jobs, cluster.types, policy, cluster.options, cluster.pairs),
        )
        for policy in policies
    )


def execute_jobs(
    policy: Policy, executor: RoundExecutor, *, measure: bool = False
) -> ExecutedSchedule:
    """Run the jobs of a cluster by a policy, and simulate them beside it.

    Jobs that share a device are not executed, so that the simulation has none, either.

    Args:
        policy: policy that allocates time.
        executor: executor of the rounds of a cluster with layers and workloads.
        measure: whether throughputs are measured first, instead of those of the cluster.

    Raises:
        InputError: the cluster has no workloads.
        DeploymentError: a job failed three times, one after another, or while it was measured.
    """
    executor.prepare()
    if measure:
        executor.measure()
    cluster = executor.cluster
    jobs, types, options = cluster.jobs, cluster.types, cluster.options
    simulated = run_cluster(jobs, types, policy, replace(options, overrun=OVERRUN_STEPS))
    executed = run_cluster(jobs, types, policy, options, work=executor.execute)
    return ExecutedSchedule(
        _schedule(cluster, f"{policy.name}, simulated", simulated),
        _schedule(cluster, f"{policy.name}, executed", executed),
        tuple(executor.turns),
        tuple(executor.notes),
    )


def _schedule(cluster: SharedCluster, name: str, result: ClusterResult) -> ClusterSchedule:
    counts = np.array([each.count for each in cluster.types], dtype=np.float64)
    prices = np.array([each.price_per_hour for each in cluster.types])
    length_s = result.makespan_s - float(result.arrival_s.min())
    return ClusterSchedule(
        name,
        result,
        result.device_s / counts / length_s,
        float(result.device_s @ prices) / 3600.0,
    )
