"""The machines of a run on a remote testbed: reserved or taken from an inventory, asked what they
are, prepared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from laggard.core.errors import (
    DeploymentError,
    InputError,
    PrerequisiteError,
    Problem,
    ScenarioError,
)
from laggard.core.run_schema import ReservedJob
from laggard.layers_services.e2clab.managers import manager_problems
from laggard.layers_services.environment.gpus import why_not
from laggard.layers_services.environment.node_facts import NodeFacts, query_nodes, with_ipv6
from laggard.layers_services.environment.prepare import (
    PreparedNode,
    Store,
    platforms,
    prepare,
    site_stores,
)
from laggard.layers_services.environment.wheels import Platform, WheelSet, wheel_set
from laggard.layers_services.g5k.release import job_name, still_held
from laggard.layers_services.g5k.request import G5kOptions, G5kPlan
from laggard.layers_services.machine import Machine
from laggard.network_emulation.links.end_host_shaping import bottleneck_problems
from laggard.run_folder.journal import Journal
from laggard.scenario.load import Scenario

if TYPE_CHECKING:
    from enoslib import Networks, Roles

RemoteTestbed = Literal["g5k", "ssh"]


@dataclass(frozen=True)
class RemoteOptions:
    """How a scenario is to be run on a remote testbed.

    Attributes:
        runs: where run folders are kept.
        testbed: `g5k`, or `ssh` for machines of one's own.
        inventory: the machines of `ssh`.
        reservation: what is asked of Grid'5000.
        reservation_timeout_s: longest wait for a reservation to start.
        quiet: say nothing while it runs.
        command: the command line, for the record.
        app_conf: the set of variables of `workflow_env.yaml` that the workflow sees.
    """

    runs: Path
    testbed: RemoteTestbed
    inventory: Path | None = None
    reservation: G5kOptions = field(default_factory=G5kOptions)
    reservation_timeout_s: float = 900.0
    quiet: bool = False
    command: tuple[str, ...] = ()
    app_conf: str | None = None


@dataclass(frozen=True)
class ReservedNodes:
    """Machines that may be used.

    Attributes:
        machines: one per host, in the hosts' order.
        walltime_end_s: `time.monotonic()` at which they are taken away; None: never.
        stores: where wheels for a machine are put, where that is not root's own home.
    """

    machines: tuple[Machine, ...]
    walltime_end_s: float | None
    stores: Mapping[str, Store] = field(default_factory=dict)


MachinePlan = tuple[Machine, ...] | G5kPlan
"""Machines of an inventory, or what Grid'5000 will be asked for."""


def plan_machines(scenario: Scenario, options: RemoteOptions) -> MachinePlan:
    """Which machines are to be used; nothing is started or reserved.

    Raises:
        ScenarioError: the testbed cannot do what the scenario asks for.
        InputError: the inventory or the reservation cannot be used.
    """
    require_supported(scenario, options.testbed)
    if options.testbed == "ssh":
        return load_inventory_machines(scenario, options.inventory)
    from laggard.layers_services.g5k.plan import plan_g5k

    return plan_g5k(scenario.layers, options.reservation, scenario.sources.layers_services)


def require_supported(scenario: Scenario, testbed: RemoteTestbed) -> None:
    """Do nothing where a testbed can do what a scenario asks for, as far as the scenario alone
    tells.

    Raises:
        ScenarioError: managers, links or churn that cannot be had there.
    """
    sources = scenario.sources
    problems = (
        *manager_problems(scenario.layers, testbed, sources.layers_services),
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


@contextmanager
def reserve_nodes(
    scenario: Scenario, plan: MachinePlan, reservation_timeout_s: float, journal: Journal
) -> Iterator[ReservedNodes]:
    """Hold the machines for the body; they are given back however it ends.

    Raises:
        InputError: a reservation that was named cannot be used.
        DeploymentError: the testbed did not give the machines.
    """
    if isinstance(plan, tuple):
        yield ReservedNodes(plan, None)
        return
    from laggard.layers_services.g5k.reserve import reserve

    def record_jobs(jobs: tuple[ReservedJob, ...]) -> None:
        journal.update(jobs=jobs)

    with journal.stage("reserve", f"{len(scenario.hosts)} nodes of Grid'5000"):
        reservation = reserve(
            plan, scenario.hosts, job_name(journal.record.id), record_jobs, reservation_timeout_s
        )
    try:
        walltime_end_s = time.monotonic() + reservation.ends_at_s - time.time()
        yield ReservedNodes(
            reservation.machines, walltime_end_s, _find_home_stores(reservation.machines)
        )
    finally:
        with journal.stage("release"):
            after = reservation.release()
            if reservation.owned:
                record_jobs(after)
        unreleased = still_held(after) if reservation.owned else ()
        if unreleased:
            _warn_unreleased_jobs(journal, unreleased)


def _warn_unreleased_jobs(journal: Journal, unreleased: tuple[ReservedJob, ...]) -> None:
    from laggard.layers_services.g5k.release import how_to_release

    journal.update(warnings=(*journal.record.warnings, how_to_release(unreleased)))


def _find_home_stores(machines: tuple[Machine, ...]) -> Mapping[str, Store]:
    """The user's own home, which a site's machines share by NFS and where their root may not
    write.
    """
    from enoslib.infra.enos_g5k.g5k_api_utils import get_api_username

    return site_stores(machines, get_api_username())


def load_inventory_machines(scenario: Scenario, inventory: Path | None) -> tuple[Machine, ...]:
    """A machine of an inventory for every host, in the hosts' order.

    Raises:
        InputError: there is no inventory, it cannot be read, or it has not enough machines.
    """
    from laggard.layers_services.ssh.inventory import assign, parse_inventory

    if inventory is None:
        raise InputError(
            "--on ssh needs to know the machines: write them into a file and name it with --hosts"
        )
    try:
        content = inventory.read_bytes()
    except OSError as error:
        raise InputError(
            f"{inventory}: cannot be read ({error.strerror}) — name it with --hosts"
        ) from error
    return assign(parse_inventory(content, inventory), scenario.hosts)


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
