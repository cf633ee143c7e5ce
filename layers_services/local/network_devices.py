"""Addresses and permanent neighbors of network devices, by ioctl and rtnetlink.

See netdevice(7), arp(7) and rtnetlink(7).
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Sequence

# Constants and structures of linux/sockios.h, linux/if_arp.h, linux/netlink.h, linux/rtnetlink.h,
# linux/if_addr.h and linux/neighbour.h.
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


def _device_request(device: str, payload: bytes) -> bytes:
    return struct.pack("16s24s", device.encode(), payload)


def _socket_address(address: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def set_device_up(control: socket.socket, device: str) -> None:
    """Bring a network device up, in the namespace where the socket `control` was created."""
    fcntl.ioctl(control, _SIOCSIFFLAGS, _device_request(device, struct.pack("H22x", _IFF_UP)))


def set_device_address(control: socket.socket, device: str, address: str, netmask: str) -> None:
    """Set the IPv4 address and mask of a device, in the namespace of the socket `control`."""
    fcntl.ioctl(control, _SIOCSIFADDR, _device_request(device, _socket_address(address)))
    fcntl.ioctl(control, _SIOCSIFNETMASK, _device_request(device, _socket_address(netmask)))


def hardware_address(control: socket.socket, device: str) -> bytes:
    """Return the six bytes of a device's Ethernet address, in the namespace of `control`."""
    answer = fcntl.ioctl(control, _SIOCGIFHWADDR, _device_request(device, b""))
    return answer[18:24]


def add_permanent_neighbour(
    control: socket.socket, device: str, address: str, hardware: bytes
) -> None:
    """Set the Ethernet address of an IPv4 neighbor permanently, so the device sends no ARP."""
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
    """Add an IPv6 address to a device, without a duplicate check, in the sockets' namespace.

    Args:
        netlink: raw rtnetlink socket
        control: any other socket of the namespace, for ioctl(2)
        device: name of the device
        address: address without prefix length
        length: length of the prefix in bits
    """
    packed = socket.inet_pton(socket.AF_INET6, address)
    body = _ADDRESS_MESSAGE.pack(
        socket.AF_INET6, length, _IFA_F_NODAD, 0, _device_index(control, device)
    )
    body += _pack_attribute(_IFA_LOCAL, packed) + _pack_attribute(_IFA_ADDRESS, packed)
    _send_requests(netlink, _RTM_NEWADDR, [body], address)


def add_permanent_ipv6_neighbours(
    netlink: socket.socket,
    control: socket.socket,
    device: str,
    neighbours: Sequence[tuple[str, bytes]],
) -> None:
    """Set the Ethernet addresses of IPv6 neighbors permanently, so that none is discovered.

    Args:
        netlink: raw rtnetlink socket
        control: any other socket of the same namespace, for ioctl(2)
        device: name of the device
        neighbours: IPv6 address and Ethernet address of each neighbor
    """
    head = _NEIGHBOUR_MESSAGE.pack(
        socket.AF_INET6, _device_index(control, device), _NUD_PERMANENT, 0, 0
    )
    bodies = [
        head
        + _pack_attribute(_NDA_DST, socket.inet_pton(socket.AF_INET6, address))
        + _pack_attribute(_NDA_LLADDR, hardware)
        for address, hardware in neighbours
    ]
    for i in range(0, len(bodies), _MESSAGES_AT_ONCE):
        _send_requests(netlink, _RTM_NEWNEIGH, bodies[i : i + _MESSAGES_AT_ONCE], device)


def _device_index(control: socket.socket, device: str) -> int:
    answer = fcntl.ioctl(control, _SIOCGIFINDEX, _device_request(device, b""))
    return int(struct.unpack_from("i", answer, 16)[0])


def _pack_attribute(kind: int, value: bytes) -> bytes:
    return (
        _ATTRIBUTE_HEADER.pack(_ATTRIBUTE_HEADER.size + len(value), kind)
        + value
        # Netlink attributes are aligned to four bytes.
        + bytes(-len(value) % 4)
    )


def _send_requests(netlink: socket.socket, kind: int, bodies: Sequence[bytes], target: str) -> None:
    """Send messages together; the kernel acknowledges the last one and reports each failure."""
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
