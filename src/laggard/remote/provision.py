"""Preparation of the machines of a run on a remote testbed: their facts, wheels, environments."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import (
    DeploymentError,
    PrerequisiteError,
    Problem,
    ScenarioError,
)
from laggard.layers_services.e2clab.managers import manager_problems
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
    """How a scenario is to be run on a remote testbed.

    Attributes:
        runs: where run folders are kept.
        testbed: the machines, with their options.
        quiet: say nothing while it runs.
        command: the command line, for the record.
        app_conf: the set of variables of `workflow_env.yaml` that the workflow sees.
        fidelity: what a failed check does before training.
    """

    runs: Path
    testbed: RemoteTestbed
    quiet: bool = False
    command: tuple[str, ...] = ()
    app_conf: str | None = None
    fidelity: FidelityPolicy = "require"


def plan_machines(scenario: Scenario, testbed: RemoteTestbed) -> MachinePlan:
    """Choose the machines of a run; nothing is started or reserved.

    Raises:
        ScenarioError: real machines cannot do what the scenario asks for.
        InputError: the inventory or the reservation cannot be used.
    """
    require_supported(scenario, testbed)
    return testbed.plan_machines(scenario)


def require_supported(scenario: Scenario, testbed: RemoteTestbed) -> None:
    """Refuse a scenario that asks for what a testbed cannot do, as far as the scenario alone
    shows.

    Raises:
        ScenarioError: for its managers, links or churn.
    """
    sources = scenario.sources
    problems = (
        *manager_problems(scenario.layers, testbed.managers, sources.layers_services),
        *bottleneck_problems(scenario.links, scenario.heterogeneity, sources.heterogeneity),
        *_find_churn_problems(scenario),
    )
    if problems:
        raise ScenarioError(problems)


def _find_churn_problems(scenario: Scenario) -> Iterator[Problem]:
    if scenario.workload.churn:
        rule = "on real machines no worker can be killed or started while others train yet"
        yield scenario.sources.workload.locate_problem(
            ("churn",), rule, "remove it, or run --on local", value="churn"
        )


@dataclass(frozen=True)
class ProvisionedNodes:
    """Machines that workers can be started on.

    Attributes:
        machines: one per host, in the hosts' order.
        facts: what each is, by its host's name.
        nodes: the environment of each, by its host's name.
        roles: EnOSlib's, with the network devices.
        networks: EnOSlib's.
    """

    machines: tuple[Machine, ...]
    facts: Mapping[str, NodeFacts]
    nodes: Mapping[str, PreparedNode]
    roles: Roles
    networks: Networks


def provision_nodes(
    reserved_nodes: ReservedNodes,
    hosts_by_rank: Sequence[str],
    journal: Journal,
    *,
    shaped: bool,
    netem: bool,
) -> ProvisionedNodes:
    """Ask the machines what they are, and give them what workers need.

    Args:
        reserved_nodes: the machines.
        hosts_by_rank: names of all ranks' hosts.
        journal: of the run.
        shaped: whether links are to be shaped, which takes root.
        netem: whether that takes netem, too.

    Raises:
        DeploymentError: a machine cannot be reached, or cannot run workers.
        PrerequisiteError: links are to be shaped, and a machine cannot.
        InputError: a machine has GPUs, and more ranks than those.
    """
    from laggard.layers_services.ssh.enoslib_roles import enoslib_roles_of
    from laggard.workloads.devices import plan_devices

    machines = reserved_nodes.machines
    with journal.stage("ask nodes", f"{len(machines)} of them what they are"):
        roles, _ = enoslib_roles_of(machines)
        facts = query_nodes(machines, roles)
        _require_shaping_support(facts, shaped=shaped, netem=netem)
        plan_devices(hosts_by_rank, {name: each.usable_gpus for name, each in facts.items()})
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
    with journal.stage("wheels", "what workers need, fetched once"):
        wheels = _build_wheel_sets(platforms(facts, sys.version_info[:2]))
    with journal.stage("prepare nodes"):
        prepared = prepare(machines, roles, facts, wheels, reserved_nodes.stores)
    return ProvisionedNodes(machines, facts, prepared.nodes, roles, networks)


def _build_wheel_sets(of_nodes: Mapping[str, Platform]) -> dict[str, WheelSet]:
    sets = {platform: wheel_set(platform) for platform in dict.fromkeys(of_nodes.values())}
    return {name: sets[platform] for name, platform in of_nodes.items()}


def _format_idle_gpus(facts: Mapping[str, NodeFacts]) -> tuple[str, ...]:
    reasons: dict[str, list[str]] = {}
    for name, each in facts.items():
        if reason := why_not(each.gpus):
            reasons.setdefault(reason, []).append(name)
    return tuple(
        f"{', '.join(names)}: ranks compute on the processor, not on the GPU: {reason}"
        for reason, names in reasons.items()
    )


def _require_shaping_support(facts: Mapping[str, NodeFacts], *, shaped: bool, netem: bool) -> None:
    if not shaped:
        return
    unaddressed = [name for name, each in facts.items() if not each.device]
    if unaddressed:
        raise DeploymentError(
            f"{', '.join(unaddressed[:5])}: no network device there carries the address that was"
            " given for it"
        )
    without_root = [name for name, each in facts.items() if not each.root]
    if without_root:
        raise PrerequisiteError(
            f"shaping links takes root on {', '.join(without_root[:5])}", "log in as root there"
        )
    without_netem = [name for name, each in facts.items() if netem and not each.netem]
    if without_netem:
        raise PrerequisiteError(
            f"delay, jitter and loss take netem, which the kernel of {', '.join(without_netem[:5])}"
            " lacks",
            "modprobe sch_netem there, or ask for rates only",
        )


def apply_addresses(scenario: Scenario, machines: tuple[Machine, ...]) -> Scenario:
    """The scenario with the addresses that its hosts really have."""
    return scenario.with_hosts([machine.host for machine in machines])
