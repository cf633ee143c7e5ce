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
"""Keep-alive settings of ssh. Ansible keeps connections open; without these settings a task would
wait a quarter of an hour for a machine that has disappeared."""

_MOST_FORKS = 64


def covering_network(addresses: Sequence[str]) -> ipaddress.IPv4Network:
    """Return the smallest network that contains all these IPv4 addresses."""
    numbers = [int(ipaddress.IPv4Address(address)) for address in addresses]
    differing = min(numbers) ^ max(numbers)
    return ipaddress.IPv4Network((min(numbers), 32 - differing.bit_length()), strict=False)


def static_roles(machines: Sequence[Machine]) -> EnoslibDescription:
    """Return the input of `enoslib.StaticConf.from_dictionary`.

    It has every machine with E2Clab's roles, and the network that contains all machines. EnOSlib
    would add its own ssh options, which check no host keys and give a gateway no key.
    `ansible_variables` replaces them, so that Ansible connects like everything else.

    Args:
        machines: machines of the hosts, with addresses
    """
    network = covering_network([machine.host.address for machine in machines])
    described: dict[str, EnoslibValue] = {
        "roles": [NETWORK_ROLE],
        "cidr": str(network),
        # EnOSlib's schema requires a gateway and a DNS server, which are not used here.
        "gateway": str(network[0]),
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
        "extra": ansible_variables(access),
    }
    return described if access.key is None else described | {"keyfile": str(access.key)}


def ansible_variables(access: Access) -> dict[str, str]:
    """Return the variables with which Ansible connects to a machine as `Access` says.

    They replace EnOSlib's own ssh options, which check no host keys.
    """
    return {
        "ansible_ssh_common_args": shlex.join(_ansible_ssh_arguments(access)),
        # Otherwise a user's ANSIBLE_HOST_KEY_CHECKING=False would precede the settings above.
        "ansible_ssh_host_key_checking": "True",
    }


def _ansible_ssh_arguments(access: Access) -> tuple[str, ...]:
    """Return the arguments as `-o` settings, the only spelling that Ansible's ssh and scp share."""
    jump = (f"ProxyJump={access.gateway}",) if access.gateway else ()
    settings = ("BatchMode=yes", *_NOTICE_DEATH, *jump, *access.options)
    return tuple(word for setting in settings for word in ("-o", setting))


def enoslib_roles_of(
    machines: Sequence[Machine], devices: Mapping[str, str] | None = None
) -> tuple[Roles, Networks]:
    """Return EnOSlib's roles and networks of machines reached by SSH, with E2Clab's names.

    Roles have E2Clab's order: first layers, services, `layer_id_service_id` and extra roles, then
    every host's service key. All roles of a host share one `enoslib.Host`, whose alias is the
    host's name.

    Args:
        machines: machines of the hosts, with addresses
        devices: network device of each host's address, as `NodeFacts.device` reports it; it makes
            `sync_info` unnecessary; without it no constraint can be compiled for the hosts yet
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
    # Ansible reads these settings at import. If it was imported before, the only effect is that it
    # warns about the dots in host names.
    os.environ.setdefault("ANSIBLE_TRANSFORM_INVALID_GROUP_CHARS", "ignore")
    os.environ.setdefault("ANSIBLE_DEPRECATION_WARNINGS", "False")
    import enoslib

    enoslib.set_config(ansible_stdout="noop", ansible_forks=max(1, min(machines, _MOST_FORKS)))
