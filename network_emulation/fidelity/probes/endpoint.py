"""Sockets inside hosts."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from laggard.core.linux import inside_network


@dataclass(frozen=True)
class ProbeEndpoint:
    """A host as a probe sees it: the file its network namespace is bound to, and its address on the
    experiment network, IPv4 or IPv6.
    """

    namespace: Path
    address: str

    @property
    def family(self) -> socket.AddressFamily:
        """Of the address, and so of everything that a probe sends to it or from it."""
        return socket.AF_INET6 if ":" in self.address else socket.AF_INET

    @property
    def header_bytes(self) -> int:
        """Of an IP packet without options."""
        return 40 if self.family == socket.AF_INET6 else 20


def socket_in(endpoint: ProbeEndpoint, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
    """A non-blocking socket inside a host's namespace, of its address's family."""
    with inside_network(endpoint.namespace):
        made = socket.socket(endpoint.family, kind, protocol)
    made.setblocking(False)
    return made


def listener_in(endpoint: ProbeEndpoint, kind: socket.SocketKind) -> socket.socket:
    """A socket bound to a free port of a host's address; a stream's listens."""
    bound = socket_in(endpoint, kind)
    bound.bind((endpoint.address, 0))
    if kind == socket.SOCK_STREAM:
        bound.listen(1)
    return bound
