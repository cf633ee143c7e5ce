"""Lease of nodes on Chameleon Cloud, their deployment, and their release."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from laggard.core.errors import DeploymentError, LaggardError
from laggard.core.hosts import Host
from laggard.core.run_schema import ReservedJob
from laggard.layers_services.chameleon.client import (
    NETWORK,
    ChameleonClient,
    CloudServer,
    Lease,
    LeaseReservation,
)
from laggard.layers_services.chameleon.plan import ChameleonPlan
from laggard.layers_services.machine import Access, Machine
from laggard.layers_services.ssh.first_login import await_login
from laggard.layers_services.ssh.host_keys import ReservationKeys

TESTBED = "chameleon"
LOGIN_S = 300.0
"""Seconds in which a node must answer SSH after its image was deployed."""

_log = logging.getLogger(__name__)

JobsRecorder = Callable[[tuple[ReservedJob, ...]], None]


@dataclass(frozen=True)
class WaitLimits:
    """Longest waits, in seconds.

    Attributes:
        lease_s: for the begin of the lease.
        deploy_s: for the deployed images; a node of bare metal takes about ten minutes.
    """

    lease_s: float = 900.0
    deploy_s: float = 2400.0


@dataclass(frozen=True)
class HeldServers:
    """Nodes with a deployed image.

    Attributes:
        client: client of the APIs.
        job: the lease.
        machines: one machine per host, in the order of the hosts.
        end_s: `time.monotonic()` at which the lease ends.
    """

    client: ChameleonClient
    job: ReservedJob
    machines: tuple[Machine, ...]
    end_s: float

    def release(self) -> ReservedJob:
        """End the lease, and return it as it is then."""
        return release_lease(self.client, self.job)


def hold_nodes(
    client: ChameleonClient,
    plan: ChameleonPlan,
    hosts: Sequence[Host],
    name: str,
    keys: ReservationKeys,
    on_job_changed: JobsRecorder,
    limits: WaitLimits,
) -> HeldServers:
    """Lease nodes, deploy their image and give them to hosts; release everything if that fails.

    Args:
        client: client of the APIs.
        plan: planned lease.
        hosts: all hosts of the scenario, in order.
        name: unique name of the lease.
        keys: host keys of the reservation.
        on_job_changed: called before and after every change of the lease.
        limits: longest waits.

    Raises:
        DeploymentError: Chameleon did not give the nodes, or a node does not answer.
        InputError: Chameleon refuses the credentials.
    """
    job = ReservedJob(testbed=TESTBED, site=client.region, job_id=0, name=name, nodes=plan.nodes)
    # Recorded before it exists, so that a killed run can still find it by its name.
    on_job_changed((job,))
    try:
        client.lease(plan, name)
        lease = _await_lease(client, name, limits.lease_s)
        end_s = time.monotonic() + 60.0 * plan.minutes
        servers = _deploy(client, plan, lease, name, limits.deploy_s)
        return HeldServers(client, job, _reach(client, hosts, servers, name, keys), end_s)
    except BaseException:
        on_job_changed((release_lease(client, job),))
        raise


def _await_lease(client: ChameleonClient, name: str, timeout_s: float) -> Lease:
    """Return the lease once it has begun."""
    found = client.find_leases(name)
    if not found:
        raise DeploymentError(f"Chameleon does not list the lease {name}")
    lease = found[0]

    def has_begun() -> bool:
        nonlocal lease
        lease = client.look(lease)
        if lease.status in ("ERROR", "TERMINATED"):
            raise DeploymentError(
                f"lease {lease.id} of Chameleon ended as {lease.status} before it began — choose"
                " another type of node"
            )
        return lease.status == "ACTIVE"

    if not client.patience.await_state(has_begun, timeout_s):
        raise DeploymentError(
            f"lease {lease.id} of Chameleon did not begin within {timeout_s:.0f} s (it is"
            f" {lease.status}) — try later, or choose another type of node"
        )
    return lease


def _deploy(
    client: ChameleonClient, plan: ChameleonPlan, lease: Lease, name: str, timeout_s: float
) -> Mapping[str, CloudServer]:
    """Return the server of every host, once all images are deployed."""
    names = dict[str, str]()
    for group in plan.groups:
        reservation = _find_reservation(lease, group.node_type)
        for host in group.hosts:
            names[host] = f"{name}-{len(names)}"
            client.deploy(names[host], plan, reservation)
    servers = dict[str, CloudServer]()

    def are_deployed() -> bool:
        servers.update({server.name: server for server in client.find_servers(name)})
        failed = [server for server in servers.values() if server.status == "ERROR"]
        if failed:
            raise DeploymentError(
                f"Chameleon could not deploy {plan.image} on {failed[0].name} — try again, or"
                " choose another image or type of node"
            )
        return all(
            (server := servers.get(each)) is not None and server.status == "ACTIVE"
            for each in names.values()
        )

    if not client.patience.await_state(are_deployed, timeout_s):
        raise DeploymentError(
            f"Chameleon did not deploy {plan.image} on {len(names)} nodes within {timeout_s:.0f} s"
            " — try again, or choose another image or type of node"
        )
    return {host: servers[each] for host, each in names.items()}


def _find_reservation(lease: Lease, node_type: str) -> LeaseReservation:
    for each in lease.reservations:
        if f'"{node_type}"' in each.resource_properties:
            return each
    raise DeploymentError(f"lease {lease.id} of Chameleon has no nodes of type {node_type}")


def _reach(
    client: ChameleonClient,
    hosts: Sequence[Host],
    servers: Mapping[str, CloudServer],
    name: str,
    keys: ReservationKeys,
) -> tuple[Machine, ...]:
    """Wait until all nodes answer SSH, the others through the first one."""
    gateway = Access(client.open_address(servers[hosts[0].name], name), options=keys.options)
    jump = " ".join(("ssh", *map(_quote, gateway.ssh_arguments()[:-1]), "-W", "%h:%p"))
    machines = []
    for position, host in enumerate(hosts):
        address = _find_address(servers[host.name])
        proxy = f"ProxyCommand={jump} {gateway.user}@{gateway.address}"
        through = replace(gateway, address=address, options=(*keys.options, proxy))
        access = through if position else gateway
        await_login(access, "true", LOGIN_S)
        machines.append(Machine(replace(host, address=address, ipv6=()), access))
    return tuple(machines)


def _quote(word: str) -> str:
    """Return a word for the shell that ssh starts after it has expanded `%`."""
    return shlex.quote(word).replace("%", "%%")


def _find_address(server: CloudServer) -> str:
    """Return the address of a server in the network of all nodes."""
    for each in server.addresses.get(NETWORK, ()):
        if each.addr.version == 4:
            return str(each.addr)
    raise DeploymentError(f"Chameleon gave {server.name} no IPv4 address in {NETWORK}")


def release_lease(client: ChameleonClient, job: ReservedJob) -> ReservedJob:
    """End the lease, give the addresses back, and wait until Chameleon lists nothing of the run.

    Args:
        client: client of the APIs.
        job: the lease, which is found by its name.

    Returns:
        The lease, with `released` set if Chameleon confirmed the end. If it did not, a warning says
        how to end it.
    """
    try:
        try:
            client.end_leases(job.name)
        finally:
            client.close_addresses(job.name)
        limit_s = client.patience.release_s
        if not client.patience.await_state(lambda: client.holds_nothing(job.name), limit_s):
            raise DeploymentError(f"lease {job.name} did not end within {limit_s:.0f} s")
    except LaggardError as error:
        _log.warning("%s; %s", error, describe_release(job))
        return job
    return job.model_copy(update={"released": True})


def describe_release(job: ReservedJob) -> str:
    """Return how the user can end a lease."""
    return (
        f"lease {job.name} of {job.site or 'Chameleon'} may still hold nodes: run `openstack"
        f" reservation lease delete {job.name}`"
    )
