"""The network between stand-in nodes: a namespace with `eth0` for each, one bridge for all, an
address on it for the controller."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from laggard.core import linux
from laggard.layers_services.local import network_devices
from tests.testbed.boot import NodeSpec

BRIDGE = "testbed"
NETNS = Path("/run/netns")
_IPV6 = ipaddress.IPv6Network("fd00::/64")
_IFA_F_NODAD = 0x02
_NETWORKS = (("172.31.255.254", 12), ("10.63.255.254", 10), ("192.168.255.254", 16))


@contextmanager
def inside(namespace: Path) -> Iterator[None]:
    """This thread in another network namespace."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.enter_namespace(namespace, linux.CLONE_NEWNET)
        yield
    finally:
        linux.setns(home, linux.CLONE_NEWNET)
        os.close(home)


def port(number: int) -> str:
    """The bridge's end of the link of the node with this number."""
    return f"node{number}"


def create_bridge() -> None:
    """Make the bridge, on which the controller has an address in every network that nodes can be
    in."""
    from pyroute2 import IPRoute

    with IPRoute() as route:
        route.link("add", ifname=BRIDGE, kind="bridge", br_stp_state=0, br_forward_delay=0)
        bridge = route.link_lookup(ifname=BRIDGE)[0]
        for address, prefix in _NETWORKS:
            route.addr("add", index=bridge, address=address, prefixlen=prefix)
        route.link("set", index=bridge, state="up")


def set_port(device: str, state: str) -> None:
    """Bring the bridge's end of a link `up` or `down`."""
    from pyroute2 import IPRoute

    with IPRoute() as route:
        route.link("set", index=route.link_lookup(ifname=device)[0], state=state)


def create_networks(specs: Sequence[NodeSpec], first: int) -> None:
    """A network namespace for each node, with `lo` up and `eth0` on the bridge."""
    from pyroute2 import IPRoute

    for spec in specs:
        _create_namespace(NETNS / spec.name)
    with IPRoute() as route:
        bridge = route.link_lookup(ifname=BRIDGE)[0]
        for number, spec in enumerate(specs, first):
            descriptor = os.open(NETNS / spec.name, os.O_RDONLY | os.O_CLOEXEC)
            peer = {"ifname": "eth0", "net_ns_fd": descriptor}
            route.link(
                "add", ifname=port(number), kind="veth", peer=peer, master=bridge, state="up"
            )
            os.close(descriptor)
    for spec in specs:
        with inside(NETNS / spec.name):
            address(spec.address, spec.prefix_length)


def _create_namespace(path: Path) -> None:
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.unshare(linux.CLONE_NEWNET)
        path.touch(exist_ok=False)
        linux.mount("/proc/thread-self/ns/net", str(path), "", linux.MS_BIND)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            network_devices.set_device_up(control, "lo")
    finally:
        linux.setns(home, linux.CLONE_NEWNET)
        os.close(home)


def ipv6_of(address: str) -> str:
    """The IPv6 address of a node with this IPv4 address."""
    return str(
        ipaddress.IPv6Address(int(_IPV6.network_address) + int(ipaddress.IPv4Address(address)))
    )


def address(address: str, prefix_length: int) -> None:
    """Give `eth0` of the namespace this thread is in one address, the IPv6 address that ends with
    it, and routes to wherever nodes and controller can be; a link-local address the kernel adds
    itself.
    """
    from pyroute2 import IPRoute

    with IPRoute() as route:
        device = route.link_lookup(ifname="eth0")[0]
        route.flush_addr(index=device)
        route.link("set", index=device, state="up")
        route.addr("add", index=device, address=address, prefixlen=prefix_length)
        route.addr("add", index=device, address=ipv6_of(address), prefixlen=64, flags=_IFA_F_NODAD)
        for network in ("172.16.0.0/12", "10.0.0.0/10", "192.168.0.0/16"):
            route.route("add", dst=network, oif=device, scope="link", priority=1000)
