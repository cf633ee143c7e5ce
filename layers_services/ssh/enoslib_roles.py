"""EnOSlib's description, roles and networks of machines that are reached over SSH."""

from __future__ import annotations

import ipaddress
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from laggard.layers_services.compile import NETWORK_ROLE, role_names
from laggard.layers_services.machine import Access, Machine

if TYPE_CHECKING:
    from enoslib import Networks, Roles

EnoslibValue = str | int | list[str] | dict[str, str]
EnoslibDescription = dict[str, dict[str, list[dict[str, EnoslibValue]]]]

_NOTICE_DEATH = ("ServerAliveInterval=10", "ServerAliveCountMax=3")
"""Ansible keeps connections open; without these a task would wait for a quarter of an hour on one
to a machine that is gone."""

_MOST_FORKS = 64


def covering_network(addresses: Sequence[str]) -> ipaddress.IPv4Network:
    """The smallest network that has all these IPv4 addresses."""
    numbers = [int(ipaddress.IPv4Address(address)) for address in addresses]
    differing = min(numbers) ^ max(numbers)
    return ipaddress.IPv4Network((min(numbers), 32 - differing.bit_length()), strict=False)


def static_roles(machines: Sequence[Machine]) -> EnoslibDescription:
    """What `enoslib.StaticConf.from_dictionary` reads: every machine with E2Clab's roles, and the
    network that has them all.

    EnOSlib would give ssh its own options (no host keys are checked, a gateway gets no key);
    `ansible_ssh_common_args` replaces them by those of `Access`, so that Ansible connects as
    everything else does.

    Args:
        machines: of the hosts, with addresses.
    """
    network = covering_network([machine.host.address for machine in machines])
    described: dict[str, EnoslibValue] = {
        "roles": [NETWORK_ROLE],
        "cidr": str(network),
        "gateway": str(
            network[0]
        ),  # asked for by EnOSlib's schema; nothing here reads it, nor the next
        "dns": str(network[0]),
    }
    return {
        "resources": {
            "machines": [_static_machine(machine) for machine in machines],
            "networks": [described],
        }
    }


def _static_machine(machine: Machine) -> dict[str, EnoslibValue]:
    access = machine.access
    described: dict[str, EnoslibValue] = {
        "address": access.address,
        "alias": machine.alias,
        "roles": list(role_names(machine.host)),
        "user": access.user,
        "port": access.port,
        "extra": {"ansible_ssh_common_args": shlex.join(_ansible_ssh_arguments(access))},
    }
    return described if access.key is None else described | {"keyfile": str(access.key)}


def _ansible_ssh_arguments(access: Access) -> tuple[str, ...]:
    """As `-o` settings only: ssh, sftp and scp, which all get them, agree on no other spelling."""
    jump = (f"ProxyJump={access.gateway}",) if access.gateway else ()
    settings = ("BatchMode=yes", *_NOTICE_DEATH, *jump, *access.options)
    return tuple(word for setting in settings for word in ("-o", setting))


def enoslib_roles_of(
    machines: Sequence[Machine], devices: Mapping[str, str] | None = None
) -> tuple[Roles, Networks]:
    """EnOSlib's roles and networks of machines that are reached by SSH, keyed as E2Clab keys them.

    Roles come in E2Clab's order: layers, services, `layer_id_service_id` and extra roles first,
    then every host's service key. All roles of a host share one `enoslib.Host`, whose alias is the
    host's name.

    Args:
        machines: of the hosts, with addresses.
        devices: the network device that has each host's address, as `NodeFacts.device` says. With
            them `sync_info` is not needed; without, no constraint can be compiled for the hosts
            yet.
    """
    _set_up_ansible(len(machines))
    import enoslib

    static = enoslib.Static(enoslib.StaticConf.from_dictionary(static_roles(machines)))
    described, networks = static.init()
    network = next(iter(networks.all()))
    nodes = {}
    for machine in machines:
        node = described[machine.alias][0]
        if devices is not None:
            address = enoslib.objects.IPAddress(
                f"{machine.host.address}/{network.network.prefixlen}", network
            )
            node.net_devices = {enoslib.objects.NetDevice(devices[machine.alias], {address})}
        nodes[machine.alias] = node
    roles = enoslib.Roles()
    for machine in machines:
        for group in machine.host.groups:
            roles[group] += [nodes[machine.alias]]
    for machine in machines:
        roles[machine.alias] += [nodes[machine.alias]]
    return roles, networks


def _set_up_ansible(machines: int) -> None:
    # Ansible reads these when it is imported; where that is past, only warnings remain: host names
    # have dots.
    os.environ.setdefault("ANSIBLE_TRANSFORM_INVALID_GROUP_CHARS", "ignore")
    os.environ.setdefault("ANSIBLE_DEPRECATION_WARNINGS", "False")
    import enoslib

    enoslib.set_config(ansible_stdout="noop", ansible_forks=max(1, min(machines, _MOST_FORKS)))
