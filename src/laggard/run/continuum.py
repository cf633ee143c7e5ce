"""The emulated continuum of one run: its hosts, links and shares, brought up and measured inside
the sandbox.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from laggard.core.run_schema import FidelityCheck
from laggard.layers_services.local.namespaces import HostNamespaces, create_namespaces
from laggard.network_emulation.compute import ShareController, open_shares
from laggard.network_emulation.compute.measure import verify_shares
from laggard.network_emulation.fidelity.verify_links import (
    ORDINARY,
    REALTIME,
    Tolerance,
    verify_links,
)
from laggard.network_emulation.links.backend import LinkBackend
from laggard.network_emulation.links.plan_links import LinkPlan, dilate_links
from laggard.network_emulation.links.tcp_settings import configure_tcp_of
from laggard.network_emulation.storage.drives import DriveSet
from laggard.network_emulation.storage.measure import verify_drives
from laggard.network_emulation.storage.plan import dilate_limits
from laggard.run.run_context import RunContext

DRIVE_FOLDER = Path("/run/drives")
"""In the sandbox's own memory, which goes with it."""


@dataclass(frozen=True)
class Continuum:
    """What is up: everything a training needs to run on it, how well it kept its promises, and how
    exact links can be.
    """

    namespaces: HostNamespaces
    links: LinkBackend
    shares: ShareController
    drives: DriveSet
    checks: tuple[FidelityCheck, ...]
    tolerance: Tolerance


@contextmanager
def open_continuum(
    context: RunContext, wait_for_imports: Callable[[], object]
) -> Iterator[Continuum]:
    """Make the hosts, shape their links and shares, measure both.

    Args:
        context: what to bring up.
        wait_for_imports: returns when nothing else computes any more, so that shares can be
            measured.
    """
    hosts = context.scenario.hosts
    with context.journal.stage("hosts", f"{len(hosts)} network namespaces"):
        namespaces = create_namespaces(hosts, "bridge" if context.links == "netem" else "tun")
    with context.journal.stage(
        "links", f"{len(context.scenario.links.pairs)} host pairs, {context.links}"
    ):
        links, tolerance = _start_links(context, namespaces)
    try:
        with context.journal.stage(
            "verify links", "round trips and rates, against what was asked for"
        ):
            checks = verify_links(
                context.scenario.links, namespaces.paths, context.dilation, tolerance
            )
        with context.journal.stage("imports"):
            wait_for_imports()
        with (
            _create_drives(context) as drives,
            open_shares(_get_real_shares(context), context.cgroups, context.cpu.cpus) as shares,
        ):
            checks += _verify_drives(context, drives)
            with context.journal.stage("verify shares", "phases of 1, 10 and 100 ms on every host"):
                checks += verify_shares(_get_real_shares(context), shares, context.dilation)
            yield Continuum(namespaces, links, shares, drives, checks, tolerance)
    finally:
        links.close()


def _get_real_shares(context: RunContext) -> Mapping[str, float]:
    return {
        host: context.dilation.real_share(share) for host, share in context.scenario.shares.items()
    }


def _create_drives(context: RunContext) -> DriveSet:
    limits = {
        host: dilate_limits(each, context.dilation)
        for host, each in context.scenario.drives.items()
    }
    return DriveSet.make(
        DRIVE_FOLDER, limits, Counter(host.name for host in context.scenario.ranks)
    )


def _verify_drives(context: RunContext, drives: DriveSet) -> tuple[FidelityCheck, ...]:
    if not context.scenario.drives:
        return ()
    with context.journal.stage(
        "verify storage", f"bandwidth and latency of {len(context.scenario.drives)} drives"
    ):
        checks = verify_drives(context.scenario.drives, drives.paths, context.dilation)
    drives.reset_counters()
    return checks


def _start_links(context: RunContext, namespaces: HostNamespaces) -> tuple[LinkBackend, Tolerance]:
    """The links, and how exact they can be: an emulator without real-time priority is late when the
    cores are busy.
    """
    plan = dilate_links(context.scenario.links, context.dilation)
    if context.links == "userspace":
        from laggard.network_emulation.links.userspace import UserspaceBackend

        emulator = UserspaceBackend.start(plan, namespaces.paths, context.dilation)
        return emulator, REALTIME if emulator.realtime else ORDINARY
    configure_tcp_of(namespaces.paths, context.dilation)
    return _start_netem(plan, namespaces), REALTIME


def _start_netem(plan: LinkPlan, namespaces: HostNamespaces) -> LinkBackend:
    from laggard.layers_services.local.provider import ansible_workspace, enoslib_roles

    roles, networks = enoslib_roles(plan.hosts)
    from laggard.network_emulation.links.netem import NetemBackend

    with ansible_workspace():
        return NetemBackend.start(plan, roles, networks, namespaces.ports)
