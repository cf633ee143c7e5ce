"""What the process that watches a training for stragglers is told; apart from it, so that planning
imports nothing heavy.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from laggard.experiments.job import Job
from laggard.run_schema import ALARMS
from laggard.workloads.plan import sampled_hosts

WATCHER = "laggard.experiments.watching"


class WatchPlan(BaseModel):
    """What the watcher is told.

    Attributes:
        spool: what the processes of the training stream into.
        alarms: the file that it writes.
        hosts: (name, address, tier) of every rank.
        sampled: hosts as the link sampler numbers them.
        lockstep: whether all ranks take the same steps.
        dilation: real seconds per virtual second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    spool: str
    alarms: str
    hosts: tuple[tuple[str, str, str], ...]
    sampled: tuple[str, ...]
    lockstep: bool
    dilation: float


def plan_watch(job: Job) -> WatchPlan:
    """The watcher of a run's training."""
    workload, hosts = job.scenario.workload, job.scenario.hosts
    return WatchPlan(
        spool=str(job.spool.folder),
        alarms=str(job.folder / ALARMS),
        hosts=tuple((host.name, host.address, host.layer) for host in job.scenario.ranks),
        sampled=sampled_hosts(workload, hosts),
        lockstep=workload.strategy.pace == "lockstep" and not workload.churn,
        dilation=job.dilation.factor,
    )
