"""The emulated continuum of one run: its hosts, links and shares, brought up and measured inside
the sandbox.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from laggard.experiments.job import Job
from laggard.layers_services.local.namespaces import HostNamespaces, create_namespaces
from laggard.network_emulation.backend import LinkBackend
from laggard.network_emulation.compute import ShareController, open_shares
from laggard.network_emulation.compute.measure import verify_shares
from laggard.network_emulation.constraints import LinkPlan, dilate_links
from laggard.network_emulation.fidelity import ORDINARY, REALTIME, Tolerance, verify_links
from laggard.network_emulation.storage.drives import DriveSet
from laggard.network_emulation.storage.measure import verify_drives
from laggard.network_emulation.storage.plan import dilate_limits
from laggard.network_emulation.tcp import configure_tcp_of
from laggard.run_schema import FidelityCheck

DRIVES = Path("/run/drives")
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
def bring_up(job: Job, imports_done: Callable[[], object]) -> Iterator[Continuum]:
    """Make the hosts, shape their links and shares, measure both.

    Args:
        job: what to bring up.
        imports_done: returns when nothing else computes any more, so that shares can be measured.
    """
    hosts = job.scenario.hosts
    with job.journal.stage("hosts", f"{len(hosts)} network namespaces"):
        namespaces = create_namespaces(hosts, "bridge" if job.links == "netem" else "tun")
    with job.journal.stage("links", f"{len(job.scenario.links.pairs)} host pairs, {job.links}"):
        links, tolerance = _start_links(job, namespaces)
    try:
        with job.journal.stage("verify links", "round trips and rates, against what was asked for"):
            checks = verify_links(job.scenario.links, namespaces.paths, job.dilation, tolerance)
        with job.journal.stage("imports"):
            imports_done()
        with (
            _make_drives(job) as drives,
            open_shares(_real_shares(job), job.cgroups, job.cpu.cpus) as shares,
        ):
            checks += _verify_drives(job, drives)
            with job.journal.stage("verify shares", "phases of 1, 10 and 100 ms on every host"):
                checks += verify_shares(_real_shares(job), shares, job.dilation)
            yield Continuum(namespaces, links, shares, drives, checks, tolerance)
    finally:
        links.close()


def _real_shares(job: Job) -> Mapping[str, float]:
    return {host: job.dilation.real_share(share) for host, share in job.scenario.shares.items()}


def _make_drives(job: Job) -> DriveSet:
    limits = {host: dilate_limits(each, job.dilation) for host, each in job.scenario.drives.items()}
    return DriveSet.make(DRIVES, limits, Counter(host.name for host in job.scenario.ranks))


def _verify_drives(job: Job, drives: DriveSet) -> tuple[FidelityCheck, ...]:
    if not job.scenario.drives:
        return ()
    with job.journal.stage(
        "verify storage", f"bandwidth and latency of {len(job.scenario.drives)} drives"
    ):
        checks = verify_drives(job.scenario.drives, drives.paths, job.dilation)
    drives.forget()
    return checks


def _start_links(job: Job, namespaces: HostNamespaces) -> tuple[LinkBackend, Tolerance]:
    """The links, and how exact they can be: an emulator without real-time priority is late when the
    cores are busy.
    """
    plan = dilate_links(job.scenario.links, job.dilation)
    if job.links == "userspace":
        from laggard.network_emulation.link_emulator import UserspaceBackend

        emulator = UserspaceBackend.start(plan, namespaces.paths, job.dilation)
        return emulator, REALTIME if emulator.realtime else ORDINARY
    configure_tcp_of(namespaces.paths, job.dilation)
    return _start_netem(plan, namespaces), REALTIME


def _start_netem(plan: LinkPlan, namespaces: HostNamespaces) -> LinkBackend:
    from laggard.layers_services.local.provider import ansible_workspace, enoslib_roles

    roles, networks = enoslib_roles(plan.hosts)
    from laggard.network_emulation.netem import NetemBackend

    with ansible_workspace():
        return NetemBackend.start(plan, roles, networks, namespaces.ports)
