"""One network namespace and one host name per host of the continuum, inside the sandbox.

Made without `ip`, which a fresh machine may lack, and without a process per host: one thread walks
through the new namespaces and binds each to a file, as ip-netns(8) does, so that `ip netns exec`
and `nsenter` find them.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from laggard.core import linux
from laggard.core.errors import DeploymentError
from laggard.core.hosts import Host
from laggard.layers_services.compile import DEVICE, NETMASK, PREFIX_LENGTH6
from laggard.layers_services.local import network_devices

if TYPE_CHECKING:
    from pyroute2 import IPRoute

BRIDGE = "continuum"
Fabric = Literal["tun", "bridge"]

_NETNS = Path("/run/netns")
_UTS = Path("/run/uts")
_IPV6 = Path("/proc/sys/net/ipv6/conf/default")
_NO_ADDRESSES = "1"
_IPV4_FIRST = "precedence ::ffff:0:0/96 100\n"
_HOST_NAME_MAX = 64
_QUEUE_PACKETS = 1000


@dataclass(frozen=True)
class HostNamespaces:
    """Where the namespaces of the hosts are bound, and what their links are called.

    Attributes:
        fabric: `tun` (only `lo`; a link emulator makes `eth0`) or `bridge` (`eth0` is a veth to one
            shared bridge).
        names: the hosts, in order.
        ports: the bridge-side device of each host; empty for `tun`.
    """

    fabric: Fabric
    names: tuple[str, ...]
    ports: Mapping[str, str]

    def path(self, host_name: str) -> Path:
        """File that the host's network namespace is bound to."""
        return _NETNS / host_name

    def uts_path(self, host_name: str) -> Path:
        """File that the host's UTS namespace (its host name) is bound to."""
        return _UTS / host_name

    def port(self, host_name: str) -> str:
        """The bridge-side end of the host's link; KeyError without a bridge."""
        return self.ports[host_name]

    @property
    def paths(self) -> Mapping[str, Path]:
        """The network namespace of every host, by name."""
        return {name: self.path(name) for name in self.names}


def create_namespaces(hosts: Sequence[Host], fabric: Fabric) -> HostNamespaces:
    """Make the hosts' namespaces; they last as long as the sandbox.

    Every host gets `lo`, its name as host name, and names for all others in `/etc/hosts`, IPv4 and
    IPv6; of the two a program that asks for either gets IPv4 first. With `bridge` it also gets
    `eth0` with its addresses, and the Ethernet addresses of all others, so that no ARP and no
    neighbour discovery crosses the emulated links (and a hundred hosts do not overflow the kernel's
    neighbour tables).

    Args:
        hosts: with addresses.
        fabric: `tun` or `bridge`.

    Raises:
        DeploymentError: the kernel refuses, or this is not a sandbox.
    """
    if not _NETNS.is_dir():
        raise DeploymentError(
            f"{_NETNS} does not exist: host namespaces are made inside laggard's sandbox only"
        )
    try:
        return _create_namespaces(tuple(hosts), fabric)
    except OSError as error:
        raise DeploymentError(
            f"the kernel refuses a namespace ({error}); free some by ending other runs"
        ) from error


def host_name_of(name: str) -> str:
    """The name as a host name: as it is, or shortened with a digest to the kernel's 64 bytes."""
    if len(name) <= _HOST_NAME_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _HOST_NAME_MAX - 9]}-{digest}"


def _create_namespaces(hosts: tuple[Host, ...], fabric: Fabric) -> HostNamespaces:
    _UTS.mkdir(exist_ok=True)
    ports = (
        {host.name: f"port{number}" for number, host in enumerate(hosts, 1)}
        if fabric == "bridge"
        else {}
    )
    with ExitStack() as stack:
        controls = _make_namespaces(hosts, stack)
        if fabric == "bridge":
            _connect_hosts(hosts, ports)
            _assign_addresses(hosts, controls)
    _mount_extended_file(
        Path("/etc/hosts"),
        "".join(
            f"{address}\t{host.name}\n" for host in hosts for address in (host.address, *host.ipv6)
        ),
    )
    _mount_extended_file(Path("/etc/gai.conf"), _IPV4_FIRST)
    return HostNamespaces(fabric, tuple(host.name for host in hosts), ports)


@dataclass(frozen=True)
class _Control:
    """Sockets that were made in a host's namespace and so act there: one for ioctl(2), one for
    rtnetlink(7).
    """

    device: socket.socket
    netlink: socket.socket


def _make_namespaces(hosts: Sequence[Host], stack: ExitStack) -> dict[str, _Control]:
    """Namespaces bound to files, `lo` up; control sockets in each, open until the stack closes."""
    home_network = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, home_network)
    home_name = os.open("/proc/thread-self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, home_name)
    controls = {}
    try:
        for host in hosts:
            linux.unshare(linux.CLONE_NEWNET | linux.CLONE_NEWUTS)
            linux.sethostname(host_name_of(host.name))
            _bind_namespace("net", _NETNS / host.name)
            _bind_namespace("uts", _UTS / host.name)
            control = _Control(
                stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
                stack.enter_context(
                    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
                ),
            )
            controls[host.name] = control
            network_devices.set_device_up(control.device, "lo")
            _silence_ipv6()
    finally:
        linux.setns(home_network, linux.CLONE_NEWNET)
        linux.setns(home_name, linux.CLONE_NEWUTS)
    return controls


def _bind_namespace(kind: str, path: Path) -> None:
    path.touch(exist_ok=False)
    linux.mount(f"/proc/thread-self/ns/{kind}", str(path), "", linux.MS_BIND)


def _silence_ipv6() -> None:
    """No link-local addresses on devices made later: their duplicate checks and router
    solicitations would cross the emulated links.
    """
    if _IPV6.is_dir():
        (_IPV6 / "addr_gen_mode").write_text(_NO_ADDRESSES, encoding="ascii")
        (_IPV6 / "disable_ipv6").write_text("0", encoding="ascii")


def _connect_hosts(hosts: Sequence[Host], ports: Mapping[str, str]) -> None:
    from pyroute2 import IPRoute

    with IPRoute() as route:
        route.link("add", ifname=BRIDGE, kind="bridge", br_stp_state=0, br_forward_delay=0)
        bridge = route.link_lookup(ifname=BRIDGE)[0]
        for host in hosts:
            _plug_port(route, bridge, ports[host.name], _NETNS / host.name)
        route.link("set", index=bridge, state="up")


def _plug_port(route: IPRoute, bridge: int, port: str, netns: Path) -> None:
    descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        peer = {"ifname": DEVICE, "net_ns_fd": descriptor, "txqlen": _QUEUE_PACKETS}
        route.link(
            "add",
            ifname=port,
            kind="veth",
            peer=peer,
            master=bridge,
            state="up",
            txqlen=_QUEUE_PACKETS,
        )
    finally:
        os.close(descriptor)


def _assign_addresses(hosts: Sequence[Host], controls: Mapping[str, _Control]) -> None:
    hardware = {}
    for host in hosts:
        control = controls[host.name]
        network_devices.set_device_address(control.device, DEVICE, host.address, NETMASK)
        for address in host.ipv6:
            network_devices.add_ipv6_address(
                control.netlink, control.device, DEVICE, address, PREFIX_LENGTH6
            )
        network_devices.set_device_up(control.device, DEVICE)
        hardware[host.name] = network_devices.hardware_address(control.device, DEVICE)
    for host in hosts:
        control = controls[host.name]
        peers = [peer for peer in hosts if peer is not host]
        for peer in peers:
            network_devices.add_permanent_neighbour(
                control.device, DEVICE, peer.address, hardware[peer.name]
            )
        network_devices.add_permanent_ipv6_neighbours(
            control.netlink,
            control.device,
            DEVICE,
            [(each, hardware[peer.name]) for peer in peers for each in peer.ipv6],
        )


def _mount_extended_file(target: Path, added: str) -> None:
    """Let hosts see a file of this machine with lines added to it."""
    if not target.exists():
        return
    seen = target.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    cover = Path("/run", target.name)
    cover.write_text(f"{seen}\n{added}", encoding="utf-8")
    linux.mount(str(cover), str(target), "", linux.MS_BIND)
