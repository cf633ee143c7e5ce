"""Emulated continuum of one run: hosts, links and shares, created and measured in the sandbox."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from laggard.core.run_schema import FidelityCheck
from laggard.layers_services.local.namespaces import HostNamespaces, create_namespaces
from laggard.network_emulation.compute import ShareController, open_shares
from laggard.network_emulation.compute.measure import can_verify_on_busy_cores, verify_shares
from laggard.network_emulation.fidelity.link_tasks import estimate_duration_s
from laggard.network_emulation.fidelity.verify_links import (
    ORDINARY,
    REALTIME,
    Tolerance,
    verify_links,
)
from laggard.network_emulation.forked import ForkedCall, start_forked
from laggard.network_emulation.links.backend import LinkBackend
from laggard.network_emulation.links.plan_links import LinkPlan, dilate_links
from laggard.network_emulation.links.tcp_settings import configure_tcp_of
from laggard.network_emulation.storage.drives import DriveSet
from laggard.network_emulation.storage.measure import verify_drives
from laggard.network_emulation.storage.plan import dilate_limits
from laggard.run.run_context import RunContext

_PROGRESS_S = 15.0
"""Time between two lines about a measurement that takes long."""

DRIVE_FOLDER = Path("/run/drives")
"""Folder of the drives' files, in the sandbox's own tmpfs, which disappears with the sandbox."""


@dataclass(frozen=True)
class Continuum:
    """Running continuum: everything that a training needs, and the results of the fidelity checks.

    Attributes:
        namespaces: network namespace of each host.
        links: backend that shapes the links.
        shares: controller of the CPU shares.
        drives: emulated drives of the hosts.
        checks: requested and measured values.
        tolerance: tolerance of the links.
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
    """Create the hosts, shape their links and shares, and measure both.

    The links are measured while the imports may still run. If the hosts leave enough of the cores
    free, the shares are measured at the same time. Otherwise they are measured afterwards, because
    imports and probes of links use the cores.

    Args:
        context: run whose continuum is created.
        wait_for_imports: function that returns when no other process computes any more.

    Yields:
        The running continuum; it is closed when the body ends.
    """
    hosts = context.scenario.hosts
    with context.journal.stage("hosts", f"{len(hosts)} network namespaces"):
        namespaces = create_namespaces(hosts, "bridge" if context.links == "netem" else "tun")
    with context.journal.stage(
        "links", f"{len(context.scenario.links.pairs)} host pairs, {context.links}"
    ):
        links, tolerance = _start_links(context, namespaces)
    try:
        # The measurement of the links is forked first: it must not inherit pipes of the limiters.
        with start_forked(
            "laggard-verify",
            lambda: verify_links(
                context.scenario.links, namespaces.paths, context.dilation, tolerance
            ),
        ) as links_measured:
            background = _Background(context, links_measured, wait_for_imports)
            if not _can_overlap(context):
                background.wait()
            with (
                _create_drives(context) as drives,
                open_shares(_get_real_shares(context), context.cgroups, context.cpu.cpus) as shares,
            ):
                share_checks = _verify_shares(context, shares, background)
                checks = background.wait() + _verify_drives(context, drives) + share_checks
                yield Continuum(namespaces, links, shares, drives, checks, tolerance)
    finally:
        links.close()


@dataclass
class _Background:
    """Work that may run while the shares are measured: measuring the links, and the imports."""

    context: RunContext
    links: ForkedCall[tuple[FidelityCheck, ...]]
    wait_for_imports: Callable[[], object]
    checks: tuple[FidelityCheck, ...] | None = None

    def wait(self) -> tuple[FidelityCheck, ...]:
        """Wait until this work is done, and return the checks of the links."""
        if self.checks is None:
            self.checks = self._await_links()
            with self.context.journal.stage("imports"):
                self.wait_for_imports()
        return self.checks

    def _await_links(self) -> tuple[FidelityCheck, ...]:
        """Wait for the links' checks, and show how long that may take if it takes long."""
        context, began_s = self.context, time.monotonic()
        expected_s = estimate_duration_s(context.scenario.links, context.dilation)
        about = f", about {expected_s:.0f} s" if expected_s > _PROGRESS_S else ""
        with context.journal.stage("verify links", f"round trips and rates{about}"):
            while not self.links.is_done(_PROGRESS_S):
                passed_s = time.monotonic() - began_s
                context.journal.display.show_message(
                    f"verify links: for {passed_s:.0f} s{about and f' of{about[1:]}'}"
                )
            return self.links.result()


def _can_overlap(context: RunContext) -> bool:
    return context.cgroups is not None and can_verify_on_busy_cores(
        _get_real_shares(context), context.cpu.cpus
    )


def _verify_shares(
    context: RunContext, shares: ShareController, background: _Background
) -> tuple[FidelityCheck, ...]:
    real = _get_real_shares(context)
    with context.journal.stage("verify shares", "phases of 1, 10 and 100 ms on every host"):
        return verify_shares(real, shares, context.dilation, before_retry=background.wait)


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
    """Start the links, and return them with their tolerance.

    An emulator without real-time priority delivers packets late when the cores are busy, so its
    tolerance is wider.
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
