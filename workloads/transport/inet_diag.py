"""Established TCP connections of a kernel, read by netlink (sock_diag(7)) without privileges.

Plain structs replace a netlink library, because a sampler that runs beside the training must cost
almost nothing. Layouts are those of `linux/inet_diag.h` and of `struct tcp_info` in `linux/tcp.h`,
to which kernels only append.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from laggard.core import linux
from laggard.core.errors import PrerequisiteError

NETLINK_SOCK_DIAG = 4

_SOCK_DIAG_BY_FAMILY = 20
# NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_INET_DIAG_INFO = 2
_TCP_ESTABLISHED = 1
_RECEIVE_BYTES = 1 << 18

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
_MESSAGE = struct.Struct("!4xHH4s12x4s12x")
_MESSAGE_BYTES = 72
_INODE = struct.Struct("=68xI")
_ATTRIBUTE = struct.Struct("=HH")
_INFO_HEAD = struct.Struct("=7xB36xI20xI28xI")
"""Layout of bytes 0 to 104: delivery_rate_app_limited (bit 0), last_data_sent, rtt,
total_retrans."""
_INFO_TAIL = struct.Struct("=Q20xI8xQQQQ")
"""Layout from byte 120: bytes_acked, min_rtt, delivery_rate, busy_time, rwnd_limited,
sndbuf_limited."""
_INFO_TAIL_AT = 120
_INFO_BYTES = _INFO_TAIL_AT + _INFO_TAIL.size


class TcpConnection(NamedTuple):
    """One end of an established TCP connection.

    Attributes:
        inode: inode of the connection's socket.
        delivery_rate_bytes_per_s: rate of delivery in bytes per second.
        app_limited: whether that rate was limited by the application.
        last_send_ms: time since data was last sent.
        busy_us: time with unacknowledged data.
        rwnd_limited_us: part of `busy_us` limited by the receiver's window.
        sndbuf_limited_us: part of `busy_us` limited by the send buffer.
    """

    inode: int
    src: bytes
    dst: bytes
    src_port: int
    dst_port: int
    rtt_us: int
    min_rtt_us: int
    delivery_rate_bytes_per_s: int
    app_limited: bool
    last_send_ms: int
    bytes_acked: int
    retransmits: int
    busy_us: int
    rwnd_limited_us: int
    sndbuf_limited_us: int


def open_in_namespace(namespace: Path | None) -> socket.socket:
    """Open a netlink socket that lists the connections of one network namespace.

    The socket stays in that namespace, whichever the caller is in later.

    Args:
        namespace: path of the namespace; None for the caller's own.

    Raises:
        PrerequisiteError: the namespace cannot be entered, or the kernel lacks sock_diag.
    """
    try:
        with nullcontext() if namespace is None else linux.inside_network(namespace):
            diagnosis = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG
            )
    except OSError as error:
        where = "here" if namespace is None else f"in {namespace}"
        raise PrerequisiteError(
            f"cannot query TCP connections {where}: {error}", "modprobe tcp_diag"
        ) from error
    diagnosis.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    return diagnosis


def list_connections(diagnosis: socket.socket) -> Iterator[TcpConnection]:
    """Yield the established IPv4 connections of the socket's namespace.

    Raises:
        PrerequisiteError: the kernel refuses the request.
    """
    request = _REQUEST.pack(
        socket.AF_INET, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, 1 << _TCP_ESTABLISHED
    )
    header = _HEADER.pack(
        _HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0
    )
    diagnosis.send(header + request)
    while True:
        answer = diagnosis.recv(_RECEIVE_BYTES)
        offset = 0
        while offset < len(answer):
            length, kind, _, _, _ = _HEADER.unpack_from(answer, offset)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                number = -struct.unpack_from("=i", answer, offset + _HEADER.size)[0]
                raise PrerequisiteError(
                    f"the kernel does not list TCP connections: {os.strerror(number)}",
                    "modprobe tcp_diag",
                )
            connection = _parse_connection(answer, offset + _HEADER.size, offset + length)
            if connection is not None:
                yield connection
            # Netlink messages are padded to multiples of four bytes.
            offset += (length + 3) & ~3


def list_own_connections() -> tuple[TcpConnection, ...]:
    """Return the connections of this process in its network namespace.

    Raises:
        PrerequisiteError: the kernel refuses the request.
    """
    with open_in_namespace(None) as diagnosis:
        found = tuple(list_connections(diagnosis))
    own = _own_inodes()
    return tuple(each for each in found if each.inode in own)


def _own_inodes() -> frozenset[int]:
    """Return the inodes of this process's sockets."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor was closed meanwhile
            link = str(descriptor.readlink())
            if link.startswith("socket:["):
                inodes.add(int(link[8:-1]))
    return frozenset(inodes)


def _parse_connection(answer: bytes, offset: int, end: int) -> TcpConnection | None:
    """Parse one entry of the reply; None if it has no usable `tcp_info`."""
    src_port, dst_port, src, dst = _MESSAGE.unpack_from(answer, offset)
    (inode,) = _INODE.unpack_from(answer, offset)
    offset += _MESSAGE_BYTES
    while offset + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(answer, offset)
        if kind == _INET_DIAG_INFO and length - _ATTRIBUTE.size >= _INFO_BYTES:
            head = _INFO_HEAD.unpack_from(answer, offset + _ATTRIBUTE.size)
            tail = _INFO_TAIL.unpack_from(answer, offset + _ATTRIBUTE.size + _INFO_TAIL_AT)
            limited, last_send_ms, rtt_us, retransmits = head
            acked, min_rtt_us, rate, busy_us, rwnd_us, sndbuf_us = tail
            return TcpConnection(
                inode, src, dst, src_port, dst_port, rtt_us, min_rtt_us, rate, limited & 1 == 1,
                last_send_ms, acked,
                retransmits, busy_us, rwnd_us, sndbuf_us,
            )  # fmt: skip
        offset += max((length + 3) & ~3, _ATTRIBUTE.size)
    return None
