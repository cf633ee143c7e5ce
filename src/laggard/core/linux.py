"""The few Linux calls that Python 3.11 does not wrap.

Each raises `OSError` with the kernel's error number and the call's target as its file name. See
unshare(2), setns(2), mount(2), prctl(2), netdevice(7), arp(7) and rtnetlink(7).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

CAP_NET_ADMIN = 12
CAP_SYS_ADMIN = 21

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_SIOCGIFHWADDR = 0x8927
_SIOCSARP = 0x8955
_IFF_UP = 0x1
_ATF_COM = 0x02
_ATF_PERM = 0x04
_ARPHRD_ETHER = 1
_SIOCGIFINDEX = 0x8933
_RTM_NEWADDR, _RTM_NEWNEIGH = 20, 28
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_REPLACE, _NLM_F_CREATE = 0x1, 0x4, 0x100, 0x400
_NLMSG_HEADER = struct.Struct("=IHHII")
_NLMSG_ERROR = struct.Struct("=16xi")
_ADDRESS_MESSAGE = struct.Struct("=BBBBI")
_NEIGHBOUR_MESSAGE = struct.Struct("=BxxxIHBB")
_ATTRIBUTE_HEADER = struct.Struct("=HH")
_IFA_ADDRESS, _IFA_LOCAL, _IFA_F_NODAD = 1, 2, 0x02
_NDA_DST, _NDA_LLADDR, _NUD_PERMANENT = 1, 2, 0x80
_MESSAGES_AT_ONCE = 100

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, target: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)
    return result


def unshare(flags: int) -> None:
    """Move the calling process into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Move the calling thread into the namespace that a descriptor of its file names."""
    _check(_libc.setns(descriptor, kind), "setns")


def enter(path: Path, kind: int) -> None:
    """Move the calling thread into the namespace bound at `path`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, kind), str(path))
    finally:
        os.close(descriptor)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` on `target`; `kind` is the file system type, empty for binds and propagation
    changes.
    """
    arguments = [text.encode() or None for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), target)


def sethostname(name: str) -> None:
    """Set the host name of the calling process's UTS namespace (at most 64 bytes)."""
    socket.sethostname(name)


def die_with_parent(parent_pid: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies.

    Args:
        parent_pid: the parent as seen before the fork; when it is already gone, the process ends
            here and now. None where the parent is in another PID namespace, so that its number
            cannot be seen.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(128 + signal.SIGKILL)


def set_process_name(name: str) -> None:
    """Name the process as `ps` shows it; the kernel keeps 15 bytes."""
    _check(_libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0), "prctl")


def effective_capabilities() -> int:
    """Bit mask of the calling process's effective capabilities (capabilities(7))."""
    for line in (
        Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    ):
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def thread_names() -> tuple[str, ...]:
    """Names of the calling process's threads, the main one first."""
    tasks = sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name))
    return tuple(
        (task / "comm").read_text(encoding="utf-8", errors="replace").strip() for task in tasks
    )


def _device_request(device: str, payload: bytes) -> bytes:
    return struct.pack("16s24s", device.encode(), payload)


def _socket_address(address: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def set_device_up(control: socket.socket, device: str) -> None:
    """Bring a network device up, in the namespace in which the socket `control` was made."""
    fcntl.ioctl(control, _SIOCSIFFLAGS, _device_request(device, struct.pack("H22x", _IFF_UP)))


def set_device_address(control: socket.socket, device: str, address: str, netmask: str) -> None:
    """Give a network device its IPv4 address and mask, in the namespace of the socket `control`."""
    fcntl.ioctl(control, _SIOCSIFADDR, _device_request(device, _socket_address(address)))
    fcntl.ioctl(control, _SIOCSIFNETMASK, _device_request(device, _socket_address(netmask)))


def hardware_address(control: socket.socket, device: str) -> bytes:
    """The six bytes of a device's Ethernet address, in the namespace of the socket `control`."""
    answer = fcntl.ioctl(control, _SIOCGIFHWADDR, _device_request(device, b""))
    return answer[18:24]


def add_permanent_neighbour(
    control: socket.socket, device: str, address: str, hardware: bytes
) -> None:
    """Tell a device once and for all which Ethernet address an IPv4 neighbour has, so that it never
    asks by ARP.
    """
    ethernet = struct.pack("H6s8x", _ARPHRD_ETHER, hardware)
    request = struct.pack(
        "16s16si16s16s",
        _socket_address(address),
        ethernet,
        _ATF_COM | _ATF_PERM,
        b"",
        device.encode(),
    )
    fcntl.ioctl(control, _SIOCSARP, request)


def add_ipv6_address(
    netlink: socket.socket, control: socket.socket, device: str, address: str, length: int
) -> None:
    """Give a network device an IPv6 address that is taken for unique, in the namespace of both
    sockets.

    Args:
        netlink: a raw rtnetlink socket.
        control: any other socket, for ioctl(2).
        device: its name.
        address: without prefix.
        length: of the prefix, in bits.
    """
    packed = socket.inet_pton(socket.AF_INET6, address)
    body = _ADDRESS_MESSAGE.pack(
        socket.AF_INET6, length, _IFA_F_NODAD, 0, _device_index(control, device)
    )
    body += _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
    _request(netlink, _RTM_NEWADDR, [body], address)


def add_permanent_ipv6_neighbours(
    netlink: socket.socket,
    control: socket.socket,
    device: str,
    neighbours: Sequence[tuple[str, bytes]],
) -> None:
    """Tell a device once and for all which Ethernet addresses IPv6 neighbours have, so that it
    never discovers them.

    Args:
        netlink: a raw rtnetlink socket.
        control: any other socket of the same namespace, for ioctl(2).
        device: its name.
        neighbours: IPv6 address and Ethernet address of each.
    """
    head = _NEIGHBOUR_MESSAGE.pack(
        socket.AF_INET6, _device_index(control, device), _NUD_PERMANENT, 0, 0
    )
    bodies = [
        head
        + _attribute(_NDA_DST, socket.inet_pton(socket.AF_INET6, address))
        + _attribute(_NDA_LLADDR, hardware)
        for address, hardware in neighbours
    ]
    for i in range(0, len(bodies), _MESSAGES_AT_ONCE):
        _request(netlink, _RTM_NEWNEIGH, bodies[i : i + _MESSAGES_AT_ONCE], device)


def _device_index(control: socket.socket, device: str) -> int:
    answer = fcntl.ioctl(control, _SIOCGIFINDEX, _device_request(device, b""))
    return int(struct.unpack_from("i", answer, 16)[0])


def _attribute(kind: int, value: bytes) -> bytes:
    return (
        _ATTRIBUTE_HEADER.pack(_ATTRIBUTE_HEADER.size + len(value), kind)
        + value
        + bytes(-len(value) % 4)
    )


def _request(netlink: socket.socket, kind: int, bodies: Sequence[bytes], target: str) -> None:
    """Send messages together; the last is acknowledged, and each that fails is answered."""
    flags = _NLM_F_REQUEST | _NLM_F_CREATE | _NLM_F_REPLACE
    messages = [
        _NLMSG_HEADER.pack(
            _NLMSG_HEADER.size + len(body), kind, flags | (_NLM_F_ACK if last else 0), 0, 0
        )
        + body
        for last, body in ((body is bodies[-1], body) for body in bodies)
    ]
    netlink.send(b"".join(messages))
    (number,) = _NLMSG_ERROR.unpack_from(netlink.recv(1 << 16))
    if number:
        raise OSError(-number, os.strerror(-number), target)
