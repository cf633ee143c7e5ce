"""The emulator for real: TUN devices in namespaces, and what the hosts see of each other."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from laggard.core.errors import EmulationError, PrerequisiteError
from laggard.core.linux import inside_network
from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint, listener_in, socket_in
from laggard.network_emulation.forked import end_companion, fork_companion
from laggard.network_emulation.link_plan import (
    AccessLink,
    Constraint,
    LinkPlan,
    Pair,
    SharedLink,
)
from laggard.network_emulation.links.backend import LinkCounters
from laggard.network_emulation.links.userspace import UserspaceBackend, tun
from laggard.network_emulation.links.userspace.backend import Discarded
from tests.network_emulation.emulated import Continuum, in_sandbox, make_hosts, needs_tun

pytestmark = needs_tun

CLOUD, FOG, EDGE1, EDGE2 = (host.name for host in make_hosts())
PATIENCE_S = 60.0
Flow = tuple[Mapping[str, ProbeEndpoint], Pair]


def both(a: str, b: str, constraint: Constraint) -> dict[Pair, Constraint]:
    return {(a, b): constraint, (b, a): constraint}


def round_trip_ms(hosts: Mapping[str, ProbeEndpoint], a: str, b: str) -> float:
    """How long a datagram takes to another host and back."""
    with (
        socket_in(hosts[a], socket.SOCK_DGRAM) as near,
        listener_in(hosts[b], socket.SOCK_DGRAM) as far,
    ):
        for each in (near, far):
            each.settimeout(PATIENCE_S)
        began = time.monotonic()
        near.sendto(b"x", far.getsockname())
        far.sendto(*far.recvfrom(10))
        near.recv(10)
        return (time.monotonic() - began) * 1e3


def count_losses(
    backend: UserspaceBackend, hosts: Mapping[str, ProbeEndpoint], percent: float
) -> float:
    """What part of 2000 datagrams the emulator drops, sent no faster than it takes them."""
    backend.change({(EDGE2, CLOUD): Constraint(loss_percent=percent)})
    first = backend.counters()[EDGE2, CLOUD]

    def handled() -> int:
        now = backend.counters()[EDGE2, CLOUD]
        return now.packets + now.dropped - first.packets - first.dropped

    with (
        socket_in(hosts[EDGE2], socket.SOCK_DGRAM) as sender,
        listener_in(hosts[CLOUD], socket.SOCK_DGRAM) as sink,
    ):
        for sent in range(100, 2001, 100):
            for _ in range(100):
                sender.sendto(b"x", sink.getsockname())
            wait_until(partial(lambda due: handled() >= due, sent))
    assert handled() == 2000
    return (backend.counters()[EDGE2, CLOUD].dropped - first.dropped) / 2000


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_overtaken(backend: UserspaceBackend, hosts: Mapping[str, ProbeEndpoint]) -> bool:
    """Whether a datagram on a link that was freed comes before one on a slow link, sent earlier."""
    backend.change({(CLOUD, FOG): Constraint(), (CLOUD, EDGE2): Constraint(30_000.0)})
    with (
        socket_in(hosts[CLOUD], socket.SOCK_DGRAM) as sender,
        listener_in(hosts[FOG], socket.SOCK_DGRAM) as free,
        listener_in(hosts[EDGE2], socket.SOCK_DGRAM) as slow,
    ):
        sender.sendto(b"slow", slow.getsockname())
        sender.sendto(b"free", free.getsockname())
        ready, _, _ = select.select([free, slow], [], [], PATIENCE_S)
        return ready == [free]


@dataclass(frozen=True)
class Seen:
    """What hosts saw of links of each kind; times by IPv4 and by IPv6.

    Attributes:
        name: of the backend.
        realtime: whether its emulator has real-time priority.
        both_ways_ms: round trips where both directions are delayed.
        one_way_ms: round trips where one direction is.
        changed_ms: the same after a change.
        changed_ns: before the change, when it was in effect, and after it.
        counters: of both directions of the first link.
        lost: parts of the packets that were dropped, where none, a fifth and a twentieth should be.
        overtaken: whether a link that was freed delays nothing.
        lateness_ms: of the emulator.
        discarded: what no link carried.
    """

    name: str
    realtime: bool
    both_ways_ms: list[float]
    one_way_ms: list[float]
    changed_ms: list[float]
    changed_ns: tuple[int, int, int]
    counters: list[LinkCounters]
    lost: list[float]
    overtaken: list[bool]
    lateness_ms: float
    discarded: Discarded


def use_links(continuum: Continuum) -> Seen:
    pairs = both(CLOUD, EDGE1, Constraint(10.0, rate_mbps=50.0)) | {(CLOUD, FOG): Constraint(25.0)}
    plan = LinkPlan(continuum.hosts, pairs)
    backend = UserspaceBackend.start(plan, continuum.namespaces)
    families = continuum.endpoints, continuum.endpoints6
    seen = Seen(
        name=backend.name,
        realtime=backend.realtime,
        both_ways_ms=[round_trip_ms(hosts, CLOUD, EDGE1) for hosts in families],
        one_way_ms=[round_trip_ms(hosts, FOG, CLOUD) for hosts in families],
        counters=[backend.counters()[pair] for pair in ((CLOUD, EDGE1), (EDGE1, CLOUD))],
        changed_ns=(
            time.monotonic_ns(),
            backend.change({(CLOUD, FOG): Constraint(60.0)}),
            time.monotonic_ns(),
        ),
        changed_ms=[round_trip_ms(hosts, FOG, CLOUD) for hosts in families],
        lost=[
            count_losses(backend, hosts, percent)
            for percent, hosts in ((0.0, families[0]), (20.0, families[0]), (5.0, families[1]))
        ],
        overtaken=[is_overtaken(backend, hosts) for hosts in families],
        lateness_ms=backend.lateness_ms(),
        discarded=backend.discarded(),
    )
    backend.close()
    backend.close()
    with (
        pytest.raises(OSError, match="unreachable"),
        socket_in(continuum.endpoints[FOG], socket.SOCK_DGRAM) as orphan,
    ):
        orphan.connect((continuum.endpoints[CLOUD].address, 9))
    return seen


def test_links_are_what_the_plan_says_and_change_while_they_run() -> None:
    """By both families, and nobody is early; how late packets are `laggard verify` measures."""
    seen = in_sandbox(use_links)
    assert (seen.name, seen.realtime) == ("userspace", True)
    assert min(seen.both_ways_ms) >= 20.0
    assert min(seen.one_way_ms) >= 25.0
    assert min(seen.changed_ms) >= 60.0
    assert list(seen.changed_ns) == sorted(seen.changed_ns)
    sizes = 14 + 20 + 8 + 1 + 14 + 40 + 8 + 1
    assert seen.counters == [LinkCounters(sizes, 2, 0)] * 2
    none, fifth, twentieth = seen.lost
    assert none == 0
    assert fifth == pytest.approx(0.2, abs=0.04)
    assert twentieth == pytest.approx(0.05, abs=0.02)
    assert seen.overtaken == [True, True]
    assert seen.lateness_ms >= 0.0
    assert seen.discarded == Discarded(0, 0, 0), "no neighbour discovery, no multicast"


def transfer_through_changes(continuum: Continuum) -> tuple[int, int, int]:
    """A TCP stream across links that change thrice, one of them losing packets."""
    backend = UserspaceBackend.start(
        LinkPlan(continuum.hosts, both(EDGE1, FOG, Constraint(5.0, rate_mbps=100.0))),
        continuum.namespaces,
    )
    with (
        listener_in(continuum.endpoints[FOG], socket.SOCK_STREAM) as listener,
        socket_in(continuum.endpoints[EDGE1], socket.SOCK_STREAM) as sender,
    ):
        for each in (listener, sender):
            each.settimeout(PATIENCE_S)
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        reader = os.fork()
        if reader == 0:
            total = sum(len(chunk) for chunk in iter(lambda: receiver.recv(1 << 16), b""))
            os._exit(total == 40 << 18)
        receiver.close()
        for constraint in (
            Constraint(20.0, rate_mbps=50.0),
            Constraint(loss_percent=1.0),
            Constraint(2.0, 0.5, 400.0),
        ):
            for _ in range(10):
                sender.sendall(bytes(1 << 18))
            backend.change({(EDGE1, FOG): constraint})
        for _ in range(10):
            sender.sendall(bytes(1 << 18))
        sender.shutdown(socket.SHUT_WR)
        _, status = os.waitpid(reader, 0)
    counters, discarded = backend.counters()[EDGE1, FOG], backend.discarded()
    backend.close()
    return os.waitstatus_to_exitcode(status), counters.bytes, discarded.undelivered


def test_a_stream_survives_live_changes_of_everything() -> None:
    complete, carried, undelivered = in_sandbox(transfer_through_changes)
    assert complete == 1
    assert carried > 40 << 18
    assert undelivered == 0


def overload(backend: UserspaceBackend, flows: list[Flow]) -> tuple[int, float]:
    """Bytes that the flows' pairs carry together until packets of each flow had to be dropped, and
    the seconds since they began."""
    pairs = {pair for _, pair in flows}
    first = backend.counters()
    began = time.monotonic()
    sender = fork_companion("test-sender", lambda: _send_datagrams(flows))
    wait_until(
        lambda: all(backend.counters()[pair].dropped - first[pair].dropped > 100 for pair in pairs)
    )
    carried = sum(backend.counters()[pair].bytes - first[pair].bytes for pair in pairs)
    took_s = time.monotonic() - began
    end_companion(sender)
    return carried, took_s


def _send_datagrams(flows: list[Flow]) -> int:
    sockets = []
    for endpoints, (src, dst) in flows:
        sockets.append(socket_in(endpoints[src], socket.SOCK_DGRAM))
        sockets[-1].connect((endpoints[dst].address, 9))
    start_s, sent = time.monotonic(), 0
    while True:
        while sent < (time.monotonic() - start_s) * 5000:
            for each in sockets:
                try:
                    each.send(bytes(1472))
                except ConnectionRefusedError:
                    continue  # nobody listens: the receiver says so
            sent += 1
        time.sleep(0.001)


def share(continuum: Continuum) -> list[tuple[int, float]]:
    """What an IPv4 and an IPv6 flow get together of a link, an uplink, a downlink and a
    bottleneck."""
    access = {EDGE1: AccessLink(EDGE1, up_mbps=30.0, down_mbps=20.0)}
    shared = (SharedLink("wan", frozenset({(FOG, EDGE2), (CLOUD, EDGE2)}), 40.0),)
    plan = LinkPlan(
        continuum.hosts, {(EDGE2, FOG): Constraint(0.0, rate_mbps=24.0)}, access, shared
    )
    backend = UserspaceBackend.start(plan, continuum.namespaces)
    together = [
        ((EDGE2, FOG), (EDGE2, FOG)),
        ((EDGE1, CLOUD), (EDGE1, FOG)),
        ((CLOUD, EDGE1), (FOG, EDGE1)),
        ((FOG, EDGE2), (CLOUD, EDGE2)),
    ]
    seen = [
        overload(backend, [(continuum.endpoints, four), (continuum.endpoints6, six)])
        for four, six in together
    ]
    backend.close()
    return seen


def test_flows_of_both_families_get_no_more_than_the_rate_together() -> None:
    """Of a link, an uplink, a downlink and a bottleneck, from the first packet on."""
    for rate_mbps, (carried, took_s) in zip(
        (24.0, 30.0, 20.0, 40.0), in_sandbox(share), strict=True
    ):
        assert 0 < carried <= rate_mbps * 1e6 / 8 * took_s + 2 * 1514


def queue_behind_ipv4(continuum: Continuum) -> tuple[float, float]:
    """How long a small IPv6 datagram takes alone, and behind fifty full IPv4 packets."""
    plan = LinkPlan(continuum.hosts, {(EDGE1, FOG): Constraint(5.0, rate_mbps=20.0)})
    backend = UserspaceBackend.start(plan, continuum.namespaces)
    four, six = continuum.endpoints, continuum.endpoints6
    with (
        listener_in(six[FOG], socket.SOCK_DGRAM) as receiver,
        socket_in(six[EDGE1], socket.SOCK_DGRAM) as sender,
        socket_in(four[EDGE1], socket.SOCK_DGRAM) as crowd,
    ):
        receiver.settimeout(PATIENCE_S)
        took_ms = []
        for ahead in (0, 50):
            began = time.monotonic()
            for _ in range(ahead):
                crowd.sendto(bytes(1472), (four[FOG].address, 9))
            sender.sendto(b"x", receiver.getsockname())
            receiver.recv(10)
            took_ms.append((time.monotonic() - began) * 1e3)
    backend.close()
    return took_ms[0], took_ms[1]


def test_an_ipv6_packet_queues_behind_the_ipv4_packets_before_it() -> None:
    alone_ms, behind_ms = in_sandbox(queue_behind_ipv4)
    assert alone_ms >= 5.0
    assert behind_ms >= 5.0 + 50 * 1514 * 8e-3 / 20


def stray_traffic(continuum: Continuum) -> Discarded:
    backend = UserspaceBackend.start(LinkPlan(continuum.hosts), continuum.namespaces)
    for endpoints, nobody in (
        (continuum.endpoints, "10.77.9.9"),
        (continuum.endpoints6, "fd77::99:9"),
    ):
        with socket_in(endpoints[CLOUD], socket.SOCK_DGRAM) as sender:
            for _ in range(3):
                sender.sendto(b"x", (nobody, 9))
    with (
        inside_network(continuum.namespaces[CLOUD]),
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as neither,
    ):
        neither.sendto(bytes(60), (tun.DEVICE, 0x88B5))
    wait_until(lambda: sum(vars(backend.discarded()).values()) >= 7)
    discarded = backend.discarded()
    backend.close()
    return discarded


def test_packets_to_nobody_are_counted() -> None:
    assert in_sandbox(stray_traffic) == Discarded(unrouted=6, unknown=1, undelivered=0)


def die(continuum: Continuum) -> tuple[bool, str]:
    """Whether the emulator dies with its parent, and what a backend says whose emulator was
    killed."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        backend = UserspaceBackend.start(LinkPlan(continuum.hosts), continuum.namespaces)
        os.write(writing, str(backend.pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    emulator = int(os.read(reading, 32))
    os.waitpid(parent, 0)
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{emulator}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    gone = not Path(f"/proc/{emulator}").exists()
    backend = UserspaceBackend.start(LinkPlan(continuum.hosts), continuum.namespaces)
    os.kill(backend.pid, signal.SIGKILL)
    with pytest.raises(EmulationError) as caught:
        backend.change({(CLOUD, FOG): Constraint(1.0)})
    backend.close()
    return gone, str(caught.value)


def test_it_dies_with_its_parent_and_its_death_is_told() -> None:
    gone, message = in_sandbox(die)
    assert gone
    assert "link emulator" in message


def refuse(continuum: Continuum) -> list[str]:
    messages = []
    plan = LinkPlan(continuum.hosts)
    backend = UserspaceBackend.start(plan, continuum.namespaces)
    with pytest.raises(EmulationError) as taken:
        UserspaceBackend.start(plan, continuum.namespaces)
    messages.append(str(taken.value))
    with pytest.raises(EmulationError) as unknown:
        backend.change({(CLOUD, "moon"): Constraint(1.0)})
    messages.append(str(unknown.value))
    backend.close()
    with pytest.raises(EmulationError) as missing:
        UserspaceBackend.start(plan, {**continuum.namespaces, FOG: Path("/run/netns/none")})
    messages.append(str(missing.value))
    tun.CLONE_DEVICE = Path("/run/no-tun")  # in the sandbox's own process
    with pytest.raises(PrerequisiteError) as driver:
        UserspaceBackend.start(plan, continuum.namespaces)
    messages.append(driver.value.grant)
    return messages


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    taken, unknown, missing, grant = in_sandbox(refuse)
    assert "exists already" in taken
    assert "moon" in unknown
    assert "/run/netns/none" in missing
    assert "chmod 0666" in grant


def ordinary(continuum: Continuum) -> tuple[bool, float]:
    plan = LinkPlan(continuum.hosts, both(CLOUD, EDGE1, Constraint(10.0)))
    backend = UserspaceBackend.start(plan, continuum.namespaces)
    measured = round_trip_ms(continuum.endpoints, CLOUD, EDGE1)
    backend.close()
    return backend.realtime, measured


def test_without_realtime_priority_it_works_and_says_so() -> None:
    realtime, measured = in_sandbox(ordinary, realtime=False)
    assert not realtime
    assert measured >= 20.0
