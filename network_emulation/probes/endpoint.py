"""Sockets inside hosts."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from laggard.network_emulation.host_namespace import entered


@dataclass(frozen=True)
class Endpoint:
    """A host as a probe sees it: the file its network namespace is bound to, and its address on the experiment network."""

    namespace: Path
    address: str


def socket_in(endpoint: Endpoint, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
    """A non-blocking IPv4 socket inside a host's namespace."""
    with entered(endpoint.namespace):
        made = socket.socket(socket.AF_INET, kind, protocol)
    made.setblocking(False)
    return made


def listener_in(endpoint: Endpoint, kind: socket.SocketKind) -> socket.socket:
    """A socket bound to a free port of a host's address; a stream's listens."""
    bound = socket_in(endpoint, kind)
    bound.bind((endpoint.address, 0))
    if kind == socket.SOCK_STREAM:
        bound.listen(1)
    return bound
