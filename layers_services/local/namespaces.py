"""Network and UTS namespaces of the hosts, inside the sandbox.

The namespaces are created without `ip`, which a fresh machine may lack, and without a process per
host. One thread creates and leaves one namespace after the other and binds each to a file, as
ip-netns(8) does. Therefore `ip netns exec` and `nsenter` find them.
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
# Value of `addr_gen_mode`: generate no link-local address.
_NO_ADDRESSES = "1"
# Line of gai.conf(5) that makes getaddrinfo(3) return IPv4 addresses first.
_IPV4_FIRST = "precedence ::ffff:0:0/96 100\n"
_HOST_NAME_MAX = 64
_QUEUE_PACKETS = 1000


@dataclass(frozen=True)
class HostNamespaces:
    """Namespaces of the hosts: their files and the names of their links.

    Attributes:
        fabric: `tun` (namespaces have `lo` only, and a link emulator creates `eth0`) or `bridge`
            (`eth0` is a veth device on one shared bridge)
        names: names of the hosts, in order
        ports: device of each host on the bridge's side; empty for `tun`
    """

    fabric: Fabric
    names: tuple[str, ...]
    ports: Mapping[str, str]

    def path(self, host_name: str) -> Path:
        """Return the file that the host's network namespace is bound to."""
        return _NETNS / host_name

    def uts_path(self, host_name: str) -> Path:
        """Return the file that the host's UTS namespace (its host name) is bound to."""
        return _UTS / host_name

    def port(self, host_name: str) -> str:
        """Return the bridge-side end of the host's link; KeyError without a bridge."""
        return self.ports[host_name]

    @property
    def paths(self) -> Mapping[str, Path]:
        """Return the network namespace file of every host, by name."""
        return {name: self.path(name) for name in self.names}


def create_namespaces(hosts: Sequence[Host], fabric: Fabric) -> HostNamespaces:
    """Create the namespaces of the hosts; they last as long as the sandbox.

    Every host gets `lo`, its name as host name, and the names of all others in `/etc/hosts` for
    IPv4 and IPv6. Programs that accept either get IPv4 first. With `bridge` it also gets `eth0`
    with its addresses, and the Ethernet addresses of all others. Therefore no ARP and no neighbor
    discovery crosses the emulated links, and a hundred hosts do not overflow the kernel's neighbor
    tables.

    Args:
        hosts: hosts with addresses
        fabric: `tun` or `bridge`

    Raises:
        DeploymentError: the kernel refuses, or the caller is not in a sandbox
    """
    if not _NETNS.is_dir():
        raise DeploymentError(
            f"{_NETNS} does not exist: host namespaces can be created only inside Laggard's sandbox"
        )
    try:
        return _create_namespaces(tuple(hosts), fabric)
    except OSError as error:
        raise DeploymentError(
            f"the kernel refused to create a namespace ({error}); end other runs to free some"
        ) from error


def host_name_of(name: str) -> str:
    """Return the name as a host name, shortened with a digest if it exceeds 64 bytes.

    The kernel limits host names to 64 bytes.
    """
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
    """Sockets that were created in a host's namespace and therefore act there.

    `device` is for ioctl(2), `netlink` for rtnetlink(7).
    """

    device: socket.socket
    netlink: socket.socket


def _make_namespaces(hosts: Sequence[Host], stack: ExitStack) -> dict[str, _Control]:
    """Create namespaces, bind them to files, and bring `lo` up.

    Returns:
        Control sockets of each namespace, which stay open until the stack closes.
    """
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
        # The thread returns to its own namespaces even after an error.
        linux.setns(home_network, linux.CLONE_NEWNET)
        linux.setns(home_name, linux.CLONE_NEWUTS)
    return controls


def _bind_namespace(kind: str, path: Path) -> None:
    path.touch(exist_ok=False)
    linux.mount(f"/proc/thread-self/ns/{kind}", str(path), "", linux.MS_BIND)


def _silence_ipv6() -> None:
    """Disable link-local addresses on devices that are created later.

    Their duplicate checks and router solicitations would cross the emulated links.
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
        # A second loop, since the Ethernet addresses of all hosts must be known.
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
    """Mount a copy of a file with added lines over the original, for the hosts only."""
    if not target.exists():
        return
    seen = target.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    cover = Path("/run", target.name)
    cover.write_text(f"{seen}\n{added}", encoding="utf-8")
    linux.mount(str(cover), str(target), "", linux.MS_BIND)
