"""Compilation of layers and services into hosts and into EnOSlib's static description.

Names and numbers are those of E2Clab 3.7 (`InfrastructureConfig._repeat_services`,
`_generate_service_id` and `Service._service_key`). A service's id is its position in its layer.
`repeat: N` appends N copies after all services. The `quantity` machines of a service share one id.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import replace

from laggard.core.hosts import Host
from laggard.layers_services.model import Layer, LayersServices, Service

NETWORK = ipaddress.IPv4Network("10.77.0.0/16")
PREFIX_LENGTH = NETWORK.prefixlen
NETMASK = str(NETWORK.netmask)
NETWORK6 = ipaddress.IPv6Network("fd77::/64")
"""Network of unique local addresses (RFC 4193). Its packets never leave the sandbox."""

PREFIX_LENGTH6 = NETWORK6.prefixlen
DEVICE = "eth0"
NETWORK_ROLE = "experiment"
CONNECTION = "laggard_namespace"

StaticValue = str | list[str] | dict[str, str]
StaticDescription = dict[str, dict[str, list[dict[str, StaticValue]]]]


def compile_hosts(layers: LayersServices) -> tuple[Host, ...]:
    """Return the machines of all layers in E2Clab's order, with IPv4 and IPv6 addresses.

    Addresses count upward from 10.77.0.1 and fd77::1.

    Args:
        layers: a validated `layers_services.yaml`, which has at most `MAX_HOSTS` machines
    """
    return tuple(
        replace(host, address=str(NETWORK[number]), ipv6=(str(NETWORK6[number]),))
        for number, host in enumerate(_compile_hosts(layers), 1)
    )


def expand_repeated_services(layer: Layer) -> tuple[Service, ...]:
    """Return the layer's services, followed by the copies that `repeat` asks for."""
    copies = [service for service in layer.services for _ in range(service.repeat)]
    return (*layer.services, *copies)


def _compile_hosts(layers: LayersServices) -> Iterator[Host]:
    for layer_id, layer in enumerate(layers.layers, 1):
        for service_id, service in enumerate(expand_repeated_services(layer), 1):
            for machine_id in range(1, service.machines + 1):
                layer_name, name = layer.name.lower(), service.name.lower()
                yield Host(
                    name=f"{layer_name}.{name}.{service_id}.{machine_id}",
                    layer=layer_name,
                    service=name,
                    service_id=service_id,
                    machine_id=machine_id,
                    roles=service.roles,
                    layer_id=layer_id,
                )


def role_names(host: Host) -> tuple[str, ...]:
    """Return the EnOSlib roles of a host, without duplicates.

    The first role is the host's service key. The roles that E2Clab's providers add follow.
    """
    return tuple(dict.fromkeys((host.name, *host.groups)))


def static_description(hosts: Sequence[Host]) -> StaticDescription:
    """Return the input of `enoslib.StaticConf.from_dictionary`.

    It has one machine per host and the one network that connects them.

    Args:
        hosts: hosts that have addresses
    """
    machines: list[dict[str, StaticValue]] = [
        {
            "address": host.address,
            "alias": host.name,
            "roles": list(role_names(host)),
            "extra": {"ansible_connection": CONNECTION, "laggard_namespace": host.name},
        }
        for host in hosts
    ]
    network: dict[str, StaticValue] = {
        "roles": [NETWORK_ROLE],
        "cidr": str(NETWORK),
        # EnOSlib requires a gateway and a DNS server. No host of the sandbox has the last address.
        "gateway": str(NETWORK[-2]),
        "dns": str(NETWORK[-2]),
    }
    return {"resources": {"machines": machines, "networks": [network]}}
