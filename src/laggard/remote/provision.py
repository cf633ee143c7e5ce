"""Preparation of a remote run's machines: node facts, wheels and Python environments."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import (
    DeploymentError,
    PrerequisiteError,
    ScenarioError,
)
from laggard.layers_services.e2clab.managers import manager_problems
from laggard.layers_services.environment.expected_platforms import (
    fetch_expected_wheels,
    remember_platforms,
)
from laggard.layers_services.environment.gpus import why_not
from laggard.layers_services.environment.node_facts import NodeFacts, query_nodes, with_ipv6
from laggard.layers_services.environment.prepare import (
    PreparedNode,
    platforms,
    prepare,
)
from laggard.layers_services.environment.wheels import Platform, WheelSet, wheel_set
from laggard.layers_services.machine import Machine
from laggard.network_emulation.links.end_host_shaping import bottleneck_problems
from laggard.remote.testbeds.remote_testbed import MachinePlan, RemoteTestbed, ReservedNodes
from laggard.run_folder.fidelity_checks import FidelityPolicy
from laggard.run_folder.journal import Journal
from laggard.scenario.load import Scenario

if TYPE_CHECKING:
    from enoslib import Networks, Roles


@dataclass(frozen=True)
class RemoteOptions:
    """Options of a run on a remote testbed.

    Attributes:
        runs: folder that contains the run folders.
        testbed: testbed with its own options.
        quiet: whether to print nothing during the run.
        command: command line, for the record.
        fidelity: reaction to a failed fidelity check before training.
        for_s: seconds between launch and finalize, if nothing is trained.
        report: whether to draw the report, which takes seconds; `laggard report` draws it later.
    """

    runs: Path
    testbed: RemoteTestbed
    quiet: bool = False
    command: tuple[str, ...] = ()
    fidelity: FidelityPolicy = "require"
    for_s: float = 0.0
    report: bool = True


def plan_machines(scenario: Scenario, testbed: RemoteTestbed) -> MachinePlan:
    """Choose the machines of a run without starting or reserving anything.

    Raises:
        ScenarioError: the scenario asks for something that real machines do not support.
        InputError: the inventory or the reservation cannot be used.
    """
    require_supported(scenario, testbed)
    return testbed.plan_machines(scenario)


def require_supported(scenario: Scenario, testbed: RemoteTestbed) -> None:
    """Refuse a scenario that the testbed cannot run, judging by the scenario alone.

    Raises:
        ScenarioError: the testbed does not support a manager or a link of the scenario.
    """
    sources = scenario.sources
    problems = (
        *manager_problems(scenario.layers, testbed.managers, sources.layers_services),
        *bottleneck_problems(scenario.links, scenario.heterogeneity, sources.heterogeneity),
    )
    if problems:
        raise ScenarioError(problems)


@dataclass(frozen=True)
class ProvisionedNodes:
    """Machines that are ready to run workers.

    Attributes:
        machines: one machine per host, in the hosts' order.
        facts: facts of each node, by host name.
        nodes: Python environment on each node, by host name.
        roles: EnOSlib roles, with the nodes' network devices.
        networks: EnOSlib networks.
    """

    machines: tuple[Machine, ...]
    facts: Mapping[str, NodeFacts]
    nodes: Mapping[str, PreparedNode]
    roles: Roles
    networks: Networks


def fetch_wheels_early(testbed: str, plans: Iterable[MachinePlan]) -> None:
    """Fetch the wheels that nodes will need, before the nodes are reserved.

    Args:
        testbed: name of the testbed.
        plans: machine plans of one reservation; those that reserve nothing need nothing yet.
    """
    expected = [plan.expected_platforms for plan in plans]
    if any(each is not None for each in expected):
        fetch_expected_wheels(testbed, (platform for each in expected for platform in each or ()))


def provision_nodes(
    reserved_nodes: ReservedNodes,
    hosts_by_rank: Sequence[str],
    journal: Journal,
    *,
    shaped: bool,
    netem: bool,
) -> ProvisionedNodes:
    """Query the facts of the machines and install the Python environment of the workers.

    Args:
        reserved_nodes: machines that the testbed gave.
        hosts_by_rank: host name of every rank.
        journal: journal of the run.
        shaped: whether links are shaped, which needs root on the nodes.
        netem: whether shaping needs netem as well.

    Raises:
        DeploymentError: a machine cannot be reached or cannot run workers.
        PrerequisiteError: links are to be shaped, and a machine lacks root or netem.
        InputError: a machine has GPUs, but fewer than ranks.
    """
    from laggard.layers_services.ssh.enoslib_roles import enoslib_roles_of
    from laggard.workloads.devices import plan_devices

    machines = reserved_nodes.machines
    with journal.stage("query nodes", f"facts of {len(machines)} nodes"):
        roles, _ = enoslib_roles_of(machines)
        facts = query_nodes(machines, roles)
        _require_shaping_support(facts, shaped=shaped, netem=netem)
        # Only the check is of use here: this raises if a node has GPUs, but fewer than ranks.
        plan_devices(hosts_by_rank, {name: each.usable_gpus for name, each in facts.items()})
        # The roles are made again, since shaping needs the network devices and IPv6 addresses,
        # which only the facts contain.
        machines = with_ipv6(machines, facts)
        roles, networks = enoslib_roles_of(
            machines, {name: each.device for name, each in facts.items()}
        )
    journal.update(
        hosts=tuple(
            {**facts[m.alias].fingerprint(), "machine": m.access.address} for m in machines
        ),
        warnings=(*journal.record.warnings, *_format_idle_gpus(facts)),
    )
    with journal.stage("wheels", "Python packages of the workers, downloaded once"):
        of_nodes = platforms(facts, sys.version_info[:2])
        wheels = _build_wheel_sets(of_nodes)
        remember_platforms(journal.record.testbed, of_nodes.values())
    with journal.stage("prepare nodes"):
        prepared = prepare(machines, roles, facts, wheels, reserved_nodes.stores)
    return ProvisionedNodes(machines, facts, prepared.nodes, roles, networks)


def _build_wheel_sets(of_nodes: Mapping[str, Platform]) -> dict[str, WheelSet]:
    sets = {platform: wheel_set(platform) for platform in dict.fromkeys(of_nodes.values())}
    return {name: sets[platform] for name, platform in of_nodes.items()}


def _format_idle_gpus(facts: Mapping[str, NodeFacts]) -> tuple[str, ...]:
    """Return one warning per reason for which nodes do not use their GPUs."""
    reasons: dict[str, list[str]] = {}
    for name, each in facts.items():
        if reason := why_not(each.gpus):
            reasons.setdefault(reason, []).append(name)
    return tuple(
        f"{', '.join(names)}: ranks compute on the CPU, not on the GPU: {reason}"
        for reason, names in reasons.items()
    )


def _require_shaping_support(facts: Mapping[str, NodeFacts], *, shaped: bool, netem: bool) -> None:
    """Refuse nodes that lack the network device, root or netem that shaping needs."""
    if not shaped:
        return
    unaddressed = [name for name, each in facts.items() if not each.device]
    if unaddressed:
        raise DeploymentError(
            f"{', '.join(unaddressed[:5])}: no network device of the node has the address that the"
            " inventory or the testbed gives for it"
        )
    without_root = [name for name, each in facts.items() if not each.root]
    if without_root:
        raise PrerequisiteError(
            f"shaping links needs root on {', '.join(without_root[:5])}",
            "log in to these nodes as root",
        )
    without_netem = [name for name, each in facts.items() if netem and not each.netem]
    if without_netem:
        raise PrerequisiteError(
            "delay, jitter and loss need netem, which the kernel lacks on"
            f" {', '.join(without_netem[:5])}",
            "run modprobe sch_netem on these nodes, or limit rates only in network.yaml",
        )


def apply_addresses(scenario: Scenario, machines: tuple[Machine, ...]) -> Scenario:
    """Return the scenario with its hosts at the addresses of the machines."""
    return scenario.with_hosts([machine.host for machine in machines])
