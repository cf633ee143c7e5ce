"""Conversion of running jobs into machines with root access, through EnOSlib's provider."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from laggard.core.errors import DeploymentError
from laggard.core.hosts import Host
from laggard.layers_services.compile import role_names
from laggard.layers_services.g5k.api import Job, Pace, retry_listing
from laggard.layers_services.g5k.api_errors import explain_errors, find_refused_key
from laggard.layers_services.g5k.configuration import build_conf
from laggard.layers_services.g5k.request import G5kPlan, JobReference
from laggard.layers_services.machine import Access, Machine
from laggard.layers_services.ssh.enoslib_roles import ansible_variables
from laggard.layers_services.ssh.host_keys import ReservationKeys

if TYPE_CHECKING:
    from enoslib import G5k, G5kConf, Networks, Roles
    from enoslib import Host as EnoslibHost
    from enoslib.infra.enos_g5k.objects import G5kHost

PRODUCTION = "DEFAULT"
"""The API's name of a site's production network."""


@dataclass(frozen=True)
class Provisioned:
    """Machines in the order of the hosts, and EnOSlib's roles and networks for them."""

    machines: tuple[Machine, ...]
    roles: Roles
    networks: Networks


def provision_jobs(
    plan: G5kPlan,
    hosts: Sequence[Host],
    jobs: Sequence[Job],
    job_name: str,
    keys: ReservationKeys,
    patience_s: float,
    pace: Pace,
) -> Provisioned:
    """Assign the nodes of running jobs to hosts, deploy their system, and give root access.

    Raises:
        DeploymentError: nodes are missing, fail to deploy, do not answer or change their host key;
            the message names them
        PrerequisiteError: there is no public SSH key to install on the nodes
    """
    references = tuple(JobReference(job.site, int(job.uid)) for job in jobs)
    conf = retry_listing(lambda: build_conf(plan, job_name, references), "the clusters", pace)
    provider = _create_provider(conf, keys, patience_s, pace)
    with explain_errors(plan):
        _, networks = retry_listing(provider.init, "the nodes", pace)
        _all_deployed(provider)
        nodes = _by_host(plan, provider.hosts)
        return Provisioned(*_build_machines(hosts, nodes, keys), networks=networks)


def _create_provider(conf: G5kConf, keys: ReservationKeys, patience_s: float, pace: Pace) -> G5k:
    import enoslib
    from enoslib.errors import EnosUnreachableHostsError

    class Provider(enoslib.G5k):  # type: ignore[misc]
        """EnOSlib's provider with limits for its two unlimited waits, and with checked keys."""

        @property
        def hosts(self) -> list[G5kHost]:
            """Nodes of the jobs, which EnOSlib assigns once it knows them."""
            return self._nodes

        @hosts.setter
        def hosts(self, nodes: list[G5kHost]) -> None:
            for node in nodes:
                node.to_enoslib = _with_checked_key(node.to_enoslib, keys)
            self._nodes = nodes

        def wait(self) -> None:
            """Do nothing, because the jobs are already running.

            EnOSlib's own wait never ends if a job was killed.
            """

        def deploy(self) -> None:
            super().deploy()
            # The deployment replaced the systems, and their host keys with them.
            keys.forget()

        def wait_nodes(self) -> None:
            hosts = [host.to_enoslib() for host in self.sshable_hosts]
            deadline = time.monotonic() + patience_s
            while True:
                try:
                    with enoslib.actions(roles=hosts, gather_facts=False) as tasks:
                        tasks.raw("hostname", task_name="Waiting for connection")
                    break
                except EnosUnreachableHostsError as error:
                    # A refused host key stays refused.
                    if time.monotonic() >= deadline or find_refused_key(error.hosts):
                        raise
                time.sleep(pace.poll_s)

    return Provider(conf)


def _all_deployed(provider: G5k) -> None:
    """Check that every node has its system, and restore those that EnOSlib's bookkeeping lost.

    EnOSlib deploys up to three times, each time the nodes that failed before. It remembers only
    the successes of the last attempt.
    """
    failed = sorted(host.fqdn for host in provider.undeployed)
    if failed:
        names = ", ".join(failed)
        raise DeploymentError(
            f"deployment failed three times on {names} — try again, or choose other servers"
        )
    if len(provider.sshable_hosts) == len(provider.hosts):
        return
    for host in provider.hosts:
        host.ssh_address = host.primary_network.translate([host.fqdn])[0][1]
    provider.sshable_hosts = provider.hosts
    provider.wait_nodes()
    provider.dhcp_networks()


def _by_host(plan: G5kPlan, nodes: Sequence[G5kHost]) -> dict[str, G5kHost]:
    """Return nodes by host name.

    The nodes of a group are in EnOSlib's order, which is the same every time.
    """
    found: dict[str, G5kHost] = {}
    for group in plan.groups:
        own = [node for node in nodes if group.hosts[0] in node.roles]
        found |= dict(zip(group.hosts, own, strict=True))
    return found


def _build_machines(
    hosts: Sequence[Host], nodes: Mapping[str, G5kHost], keys: ReservationKeys
) -> tuple[tuple[Machine, ...], Roles]:
    import enoslib

    machines: list[Machine] = []
    there: dict[str, EnoslibHost] = {}
    for host in hosts:
        node = nodes[host.name]
        reached = node.to_enoslib()
        site, cluster, _ = node._where  # noqa: SLF001 - public parts of its name
        access = _access_of(reached, keys)
        machines.append(
            Machine(replace(host, address=_find_address(node), ipv6=()), access, site, cluster)
        )
        there[host.name] = enoslib.Host(
            reached.address, alias=host.name, user=reached.user, extra=reached.extra
        )
    roles = enoslib.Roles()
    for named in (False, True):  # group roles first, as in E2Clab
        for host in hosts:
            for role in role_names(host):
                if (role == host.name) is named:
                    roles[role] += [there[host.name]]
    return tuple(machines), roles


def _with_checked_key(
    to_enoslib: Callable[..., EnoslibHost], keys: ReservationKeys
) -> Callable[..., EnoslibHost]:
    """Return EnOSlib's description of a node with our settings of ssh instead of its own."""

    def describe(*arguments: object, **options: object) -> EnoslibHost:
        node = to_enoslib(*arguments, **options)
        node.extra.update(ansible_variables(_access_of(node, keys)))
        return node

    return describe


def _access_of(node: EnoslibHost, keys: ReservationKeys) -> Access:
    return Access(
        str(node.address),
        user=str(node.user),
        gateway=_find_gateway(node.extra),
        options=keys.options,
    )


def _find_gateway(extra: Mapping[str, object]) -> str:
    if "gateway" not in extra:
        return ""
    return (
        f"{extra['gateway_user']}@{extra['gateway']}"
        if "gateway_user" in extra
        else str(extra["gateway"])
    )


def _find_address(node: G5kHost) -> str:
    """Return a node's IPv4 address on its primary network, from the testbed's description."""
    vlan = node.primary_network.vlan_id
    for adapter in node.apinode.network_adapters:
        if (
            adapter.get("mounted")
            and adapter.get("interface") == "Ethernet"
            and not adapter.get("management")
        ):
            address = (
                adapter["ip"]
                if vlan == PRODUCTION
                else node.apinode.kavlan[adapter["device"]][f"kavlan-{vlan}"]
            )
            try:
                return str(ipaddress.IPv4Address(str(address)))
            except ValueError as error:
                raise DeploymentError(
                    f"Grid'5000 lists {str(address)[:100]!a} as the address of {node.fqdn}, which"
                    " is no IPv4 address — choose another server"
                ) from error
    raise DeploymentError(
        f"Grid'5000 lists no mounted Ethernet interface for {node.fqdn} — choose another server"
    )
