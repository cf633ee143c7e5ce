"""TCP of the hosts: what is chosen, and what connections then really use."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

import pytest

from laggard.core.virtual_time import Dilation
from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint, listener_in, socket_in
from laggard.network_emulation.link_plan import Constraint, LinkPlan
from laggard.network_emulation.links.tcp_settings import (
    TcpSettings,
    choose_settings,
    configure_tcp,
    configure_tcp_of,
)
from laggard.network_emulation.links.userspace import UserspaceBackend
from tests.network_emulation.emulated import Continuum, in_sandbox, needs_tun

_RTO_US = struct.Struct("8xI")


@pytest.mark.parametrize(
    ("available", "dilation", "expected"),
    [
        (("reno", "bbr", "cubic"), 1.0, TcpSettings("cubic", None)),
        (("reno", "bbr"), 1.0, TcpSettings("reno", None)),
        (("reno", "cubic"), 4.0, TcpSettings("reno", 800.0)),
    ],
)
def test_choice(available: tuple[str, ...], dilation: float, expected: TcpSettings) -> None:
    assert choose_settings(available, Dilation(dilation)) == expected


def connect(continuum: Continuum, endpoints: Mapping[str, ProbeEndpoint]) -> tuple[str, str, int]:
    first, second = (endpoints[host.name] for host in continuum.hosts[:2])
    with (
        listener_in(second, socket.SOCK_STREAM) as listener,
        socket_in(first, socket.SOCK_STREAM) as active,
    ):
        listener.settimeout(60.0)
        active.settimeout(60.0)
        active.connect(listener.getsockname())
        passive, _ = listener.accept()
        with passive:
            active.sendall(b"x")
            passive.recv(1)
            used = [
                s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
                for s in (active, passive)
            ]
            (rto_us,) = _RTO_US.unpack(
                active.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTO_US.size)
            )
    return used[0].decode(), used[1].decode(), rto_us // 1000


def dilate(continuum: Continuum) -> list[tuple[str, str, int]]:
    delays = dict.fromkeys(
        [(a.name, b.name) for a in continuum.hosts for b in continuum.hosts if a != b],
        Constraint(1.0),
    )
    backend = UserspaceBackend.start(LinkPlan(continuum.hosts, delays), continuum.namespaces)
    families = continuum.endpoints, continuum.endpoints6
    seen = [connect(continuum, family) for family in families]
    first, *rest = continuum.hosts
    one = configure_tcp(continuum.namespaces[first.name], Dilation(5.0))
    others = configure_tcp_of(
        {host.name: continuum.namespaces[host.name] for host in rest}, Dilation(5.0)
    )
    assert set(others.values()) == {one}
    seen += [connect(continuum, family) for family in families]
    backend.close()
    return seen


@needs_tun
def test_connections_of_both_ends_use_what_was_chosen() -> None:
    seen = in_sandbox(dilate)
    for plain in seen[:2]:
        assert plain[0] == plain[1]
        assert plain[0] in {"cubic", "reno"}
        assert plain[2] >= 200
    for dilated in seen[2:]:
        assert dilated[:2] == ("reno", "reno")
        assert dilated[2] >= 1000
