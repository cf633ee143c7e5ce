"""What each node's agent is told: pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from laggard.experiments.remote.ground import Prepared
from laggard.experiments.remote.messages import AgentPlan
from laggard.experiments.remote.node_limits import drive_folder
from laggard.experiments.scenario import Scenario
from laggard.workloads.devices import on_devices
from laggard.workloads.plan import plan_evaluator, plan_link_sampler, plan_workers

RENDEZVOUS_PORT = 28320


def plan_agents(scenario: Scenario, ready: Prepared, run_id: str) -> Mapping[str, AgentPlan]:
    """The plan of every node's agent, by its host's name.

    Args:
        scenario: with the hosts' real addresses.
        ready: the machines.
        run_id: names the run's folder on the nodes.

    Raises:
        InputError: a node has GPUs, and more ranks than those.
    """
    folders = {name: f"{node.runs}/{run_id}-{name}" for name, node in ready.nodes.items()}
    return agent_plans(scenario, folders, {name: facts.usable_gpus for name, facts in ready.facts.items()})


def agent_plans(scenario: Scenario, folders: Mapping[str, str], gpus: Mapping[str, int]) -> Mapping[str, AgentPlan]:
    """As `plan_agents`, of the run's folder and the number of GPUs of every node."""
    head = scenario.ranks[0]
    meeting = f"tcp://{head.address}:{RENDEZVOUS_PORT}"
    limited = _limited(scenario)
    plans: dict[str, AgentPlan] = {}
    for number, host in enumerate(scenario.hosts):
        folder = Path(folders[host.name])
        drives = {name: drive_folder(folder) / name for name in scenario.drives}
        workers = plan_workers(scenario.workload, scenario.hosts, folder / "spool", init_method=meeting, drives=drives)
        workers = on_devices([worker.model_copy(update={"relayed": True}) for worker in workers], gpus)
        plans[host.name] = AgentPlan(
            host=host.name,
            address=host.address,
            folder=folders[host.name],
            workers=tuple(worker for worker in workers if worker.host == host.name),
            evaluator=plan_evaluator(workers) if host.name == head.name else None,
            sampler=plan_link_sampler(workers, scenario.hosts, {}),
            share=scenario.shares[host.name] if host.name in limited else None,
            core=number,
            drive=scenario.drives.get(host.name),
            memory_bytes=scenario.memory.get(host.name),
            reference=head.address,
        )
    return plans


def _limited(scenario: Scenario) -> frozenset[str]:
    """Hosts whose workers do not have a whole core all the time."""
    changed = {
        target
        for change in scenario.changes
        if any(name == "cpu" for name, _ in change.values)
        for target in change.targets
        if isinstance(target, str)
    }
    return frozenset(changed | {host for host, share in scenario.shares.items() if share < 1})
