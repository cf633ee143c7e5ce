"""Plan of every node's agent; pure functions without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from laggard.remote.agent.host_limits import get_drive_folder
from laggard.remote.agent.messages import SENT_FILES, AgentPlan
from laggard.remote.provision import ProvisionedNodes
from laggard.scenario.client_profiles import profile_clients
from laggard.scenario.load import Scenario
from laggard.workloads.devices import on_devices
from laggard.workloads.plan import (
    join_exchange,
    place_server,
    plan_addresses,
    plan_evaluator,
    plan_link_sampler,
    plan_workers,
)
from laggard.workloads.specification.churn import absent_at_start, turns
from laggard.workloads.transport.keys import make_endpoints
from laggard.workloads.transport.plan import EndpointPlan
from laggard.workloads.workload import Workload

RENDEZVOUS_PORT = 28320
MESSAGE_TIMEOUT_S = 300.0
"""Seconds without an answer after which a rank or a server reports an error. A collective that
does not move has the same limit."""


def plan_agents(
    scenario: Scenario, provisioned: ProvisionedNodes, run_id: str
) -> Mapping[str, AgentPlan]:
    """Return the plan of every node's agent, by host name.

    Args:
        scenario: scenario with the real addresses of its hosts.
        provisioned: machines that are ready to run workers.
        run_id: identifier that names the run's folder on the nodes.

    Raises:
        InputError: a node has GPUs, but fewer than ranks.
    """
    folders = {name: f"{node.runs}/{run_id}-{name}" for name, node in provisioned.nodes.items()}
    gpus = {name: facts.usable_gpus for name, facts in provisioned.facts.items()}
    strategy, endpoints = scenario.workload.strategy, tuple[EndpointPlan, ...]()
    if scenario.trains and (strategy.uses_server or strategy.peer_to_peer):
        endpoints = make_endpoints(
            plan_addresses(scenario.workload, scenario.hosts), MESSAGE_TIMEOUT_S
        )
    return build_agent_plans(scenario, folders, gpus, endpoints)


def find_evaluator_host(scenario: Scenario) -> str:
    """Return the host that evaluates the training and decides its end.

    It is the server's host, or the reference host if there is no server.
    """
    if scenario.trains and scenario.workload.strategy.uses_server:
        return place_server(scenario.workload.placement, scenario.hosts).name
    return scenario.reference_host.name


def find_opening_host(scenario: Scenario) -> str:
    """Return the host whose rank opens the barriers: the first one present at the start."""
    planned = turns(scenario.workload.churn_entries, scenario.hosts, scenario.ranks)
    absent = absent_at_start(planned)
    present = (host.name for host in scenario.ranks if host.name not in absent)
    return next(present, scenario.reference_host.name)


def build_agent_plans(
    scenario: Scenario,
    folders: Mapping[str, str],
    gpus: Mapping[str, int],
    endpoints: Sequence[EndpointPlan] = (),
) -> Mapping[str, AgentPlan]:
    """Build the agents' plans from values alone, for `plan_agents`.

    Args:
        scenario: scenario with the real addresses of its hosts.
        folders: folder of the run on each node, by host name.
        gpus: number of usable GPUs of each node, by host name.
        endpoints: endpoints of all ranks and the server; empty if the strategy sends no messages.
    """
    head, evaluates = scenario.reference_host, find_evaluator_host(scenario)
    rendezvous_url = f"tcp://{head.address}:{RENDEZVOUS_PORT}"
    limited, joins = _find_limited_hosts(scenario), _count_joins(scenario)
    profiles = profile_clients(scenario)
    plans: dict[str, AgentPlan] = {}
    for number, host in enumerate(scenario.hosts):
        folder = Path(folders[host.name])
        drives = {name: get_drive_folder(folder) / name for name in scenario.drives}
        workers = (
            plan_workers(
                _name_sent_files(scenario.workload, folder),
                scenario.hosts,
                folder / "workers",
                init_method=rendezvous_url,
                drives=drives,
            )
            if scenario.trains
            else ()
        )
        # Each node has its own start barrier, so the ranks' openings come through the relay.
        workers = on_devices(
            [worker.model_copy(update={"relayed": True}) for worker in workers], gpus
        )
        workers, server = (
            join_exchange(workers, scenario.hosts, endpoints, profiles)
            if endpoints
            else (workers, None)
        )
        plans[host.name] = AgentPlan(
            host=host.name,
            address=host.address,
            folder=folders[host.name],
            workers=tuple(worker for worker in workers if worker.host == host.name),
            evaluator=plan_evaluator(workers) if workers and host.name == evaluates else None,
            server=server if server is not None and server.host == host.name else None,
            sampler=plan_link_sampler(workers, scenario.hosts, {}) if workers else None,
            share=scenario.shares[host.name] if host.name in limited else None,
            core=number,
            drive=scenario.drives.get(host.name),
            most_lives=1 + joins[host.name],
            memory_bytes=scenario.memory.get(host.name),
            reference_address=head.address,
        )
    return plans


def _count_joins(scenario: Scenario) -> Counter[str]:
    """Return how often the workers of a host join, by host name."""
    planned = turns(scenario.workload.churn_entries, scenario.hosts, scenario.ranks)
    return Counter(turn.host for turn in planned if turn.joins)


def list_sent_files(workload: Workload) -> Mapping[str, Path]:
    """Return the files of a workload that nodes get, by their names there."""
    files = {SENT_FILES[key]: getattr(workload, key) for key in SENT_FILES}
    return {name: Path(file) for name, file in files.items() if file is not None}


def _name_sent_files(workload: Workload, folder: Path) -> Workload:
    """Return a workload that names the copies of its files on a node."""
    sent = list_sent_files(workload)
    copies = {key: str(folder / name) for key, name in SENT_FILES.items() if name in sent}
    return workload.model_copy(update=copies)


def _find_limited_hosts(scenario: Scenario) -> frozenset[str]:
    """Return the hosts whose workers have less than a whole core, at least temporarily."""
    changed = {
        target
        for change in scenario.changes
        if any(name == "cpu" for name, _ in change.values)
        for target in change.targets
        if isinstance(target, str)
    }
    return frozenset(changed | {host for host, share in scenario.shares.items() if share < 1})
