"""Plan of the straggler watcher; a module of its own, so that planning imports nothing heavy."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from laggard.analysis.tables.planned_blocks import number_stages, read_planned_blocks
from laggard.core.run_schema import ALARMS_FILE
from laggard.run.run_context import RunContext
from laggard.workloads.plan import sampled_hosts

WATCHER_MODULE = "laggard.run.straggler_watcher"


class WatcherPlan(BaseModel):
    """Input of the straggler watcher.

    Attributes:
        output_dir: folder that the processes of the training stream into.
        alarms: file that the watcher writes.
        hosts: (name, address, tier) of every rank.
        sampled: names of hosts in the order in which the link sampler numbers them.
        lockstep: whether all ranks take the same steps.
        dilation: real seconds per virtual second.
        stages: number of each rank's part of a divided model; none if all ranks do the same work.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output_dir: str
    alarms: str
    hosts: tuple[tuple[str, str, str], ...]
    sampled: tuple[str, ...]
    lockstep: bool
    dilation: float
    stages: tuple[int, ...] = ()


def plan_watcher(context: RunContext) -> WatcherPlan:
    """Plan the straggler watcher of a run."""
    workload, hosts = context.scenario.workload, context.scenario.hosts
    return WatcherPlan(
        output_dir=str(context.output_dir.folder),
        alarms=str(context.folder / ALARMS_FILE),
        hosts=tuple((host.name, host.address, host.layer) for host in context.scenario.ranks),
        sampled=sampled_hosts(workload, hosts),
        lockstep=workload.strategy.sync_mode == "lockstep" and not workload.churn_entries,
        dilation=context.dilation.factor,
        stages=number_stages(
            read_planned_blocks(workload.strategy.model_dump()),
            [host.name for host in context.scenario.ranks],
        ),
    )
