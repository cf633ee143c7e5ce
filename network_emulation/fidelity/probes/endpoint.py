"""Endpoints of probes: sockets inside hosts."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from laggard.core.linux import inside_network


@dataclass(frozen=True)
class ProbeEndpoint:
    """Host as a probe sees it.

    Attributes:
        namespace: file that its network namespace is bound to.
        address: its address on the experiment network, IPv4 or IPv6.
    """

    namespace: Path
    address: str

    @property
    def family(self) -> socket.AddressFamily:
        """Return the family of the address, which all sockets of a probe use."""
        return socket.AF_INET6 if ":" in self.address else socket.AF_INET

    @property
    def header_bytes(self) -> int:
        """Return the size of an IP header without options."""
        return 40 if self.family == socket.AF_INET6 else 20


def socket_in(endpoint: ProbeEndpoint, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
    """Return a non-blocking socket inside a host's namespace, of its address's family."""
    with inside_network(endpoint.namespace):
        made = socket.socket(endpoint.family, kind, protocol)
    made.setblocking(False)
    return made


def listener_in(endpoint: ProbeEndpoint, kind: socket.SocketKind) -> socket.socket:
    """Return a socket bound to a free port of a host's address; a stream socket listens."""
    bound = socket_in(endpoint, kind)
    bound.bind((endpoint.address, 0))
    if kind == socket.SOCK_STREAM:
        bound.listen(1)
    return bound
