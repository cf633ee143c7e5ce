"""The emulator for real: TUN devices in namespaces, and what the hosts see of each other."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from laggard.core.errors import EmulationError, PrerequisiteError
from laggard.core.linux import inside_network
from laggard.network_emulation.fidelity.measure import (
    EchoProbe,
    LossProbe,
    RateProbe,
    measure_loss,
    measure_rate,
    measure_rtt,
)
from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint, listener_in, socket_in
from laggard.network_emulation.forked import end_companion, fork_companion
from laggard.network_emulation.link_plan import (
    AccessLink,
    Constraint,
    LinkPlan,
    Pair,
    SharedLink,
)
from laggard.network_emulation.links.backend import LinkBackend
from laggard.network_emulation.links.userspace import UserspaceBackend, tun
from laggard.network_emulation.links.userspace.backend import Discarded
from tests.network_emulation.emulated import Continuum, in_sandbox, make_hosts, needs_tun

pytestmark = [needs_tun, pytest.mark.alone]

CLOUD, FOG, EDGE1, EDGE2 = (host.name for host in make_hosts())
Flow = tuple[Mapping[str, ProbeEndpoint], Pair]


def both(a: str, b: str, constraint: Constraint) -> dict[Pair, Constraint]:
    return {(a, b): constraint, (b, a): constraint}


def rtt_ms(continuum: Continuum, *pairs: Pair) -> list[float | None]:
    probes = [EchoProbe(*pair, count=20, spacing_ms=8.0, patience_ms=200.0) for pair in pairs]
    measured = measure_rtt(probes, continuum.endpoints, busy=False)
    return [measured[pair] for pair in pairs]


def start_and_see(continuum: Continuum) -> dict[str, object]:
    pairs = both(CLOUD, EDGE1, Constraint(10.0, rate_mbps=50.0)) | {(CLOUD, FOG): Constraint(25.0)}
    backend: LinkBackend = UserspaceBackend.start(
        LinkPlan(continuum.hosts, pairs), continuum.namespaces
    )
    seen: dict[str, object] = {"name": backend.name}
    seen["rtt"] = rtt_ms(continuum, (CLOUD, EDGE1), (FOG, CLOUD), (EDGE1, EDGE2))
    seen["rate"] = measure_rate([RateProbe(CLOUD, EDGE1, 50.0, 10.0, 20.0)], continuum.endpoints)[
        CLOUD, EDGE1
    ]
    seen["counters"] = backend.counters()[CLOUD, EDGE1]
    seen["changed_ns"] = (
        time.monotonic_ns(),
        backend.change({(CLOUD, FOG): Constraint(60.0)}),
        time.monotonic_ns(),
    )
    seen["rtt changed"] = rtt_ms(continuum, (FOG, CLOUD))
    backend.change({(CLOUD, FOG): Constraint()})
    seen["rtt free"] = rtt_ms(continuum, (FOG, CLOUD))
    seen["lateness_ms"] = backend.lateness_ms()
    assert isinstance(backend, UserspaceBackend)
    seen["p50_ms"] = backend.lateness_quantile_ms(0.5)
    seen["realtime"] = backend.realtime
    backend.close()
    backend.close()
    with (
        pytest.raises(OSError, match="unreachable"),
        socket_in(continuum.endpoints[FOG], socket.SOCK_DGRAM) as orphan,
    ):
        orphan.connect((continuum.endpoints[CLOUD].address, 9))
    return seen


def test_links_are_what_the_plan_says_and_change_while_they_run() -> None:
    seen = in_sandbox(start_and_see)
    assert seen["name"] == "userspace"
    assert seen["rtt"] == pytest.approx([20.0, 25.0, 0.0], abs=2.0)
    assert seen["rate"] == pytest.approx(50.0, rel=0.1)
    assert seen["rtt changed"] == pytest.approx([60.0], abs=2.0)
    assert seen["rtt free"] == pytest.approx([0.0], abs=2.0)
    before, effective, after = seen["changed_ns"]  # type: ignore[misc]
    assert before <= effective <= after
    counters = seen["counters"]
    assert counters.bytes > 1e6  # type: ignore[attr-defined]
    assert 60 <= counters.bytes / counters.packets <= 1514  # type: ignore[attr-defined]
    assert seen["lateness_ms"] >= 0.0  # type: ignore[operator]
    assert seen["p50_ms"] < 5.0  # type: ignore[operator]
    assert seen["realtime"] is True


def lose(continuum: Continuum) -> list[float]:
    backend = UserspaceBackend.start(LinkPlan(continuum.hosts), continuum.namespaces)
    rates = []
    for percent in (0.0, 5.0, 20.0, 0.0):
        backend.change({(EDGE1, CLOUD): Constraint(1.0, loss_percent=percent)})
        probe = LossProbe(EDGE1, CLOUD, count=2000, per_s=4000.0, patience_ms=20.0)
        count = measure_loss([probe], continuum.endpoints)[EDGE1, CLOUD]
        assert backend.counters()[EDGE1, CLOUD].dropped >= count.lost
        rates.append(100 * count.lost / count.sent)
    backend.close()
    return rates


def test_loss_is_what_was_asked_and_stops_when_told() -> None:
    assert in_sandbox(lose) == pytest.approx([0.0, 5.0, 20.0, 0.0], abs=4.0)


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
            each.settimeout(10.0)
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


def carried_mbps(backend: UserspaceBackend, flows: list[Flow]) -> float:
    """What the flows' pairs carry together while each flow is sent 60 Mbit/s of datagrams."""
    sender = fork_companion("test-sender", lambda: _send_datagrams(flows))
    time.sleep(0.3)
    marks = []
    for _ in range(2):
        counters = backend.counters()
        marks.append(
            (time.monotonic(), sum(counters[pair].bytes for pair in {pair for _, pair in flows}))
        )
        time.sleep(1.0)
    end_companion(sender)
    (start_s, before), (end_s, after) = marks
    return (after - before) * 8e-6 / (end_s - start_s)


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


def share(continuum: Continuum) -> list[float]:
    access = {EDGE1: AccessLink(EDGE1, up_mbps=30.0, down_mbps=20.0)}
    shared = (SharedLink("wan", frozenset({(FOG, EDGE2), (CLOUD, EDGE2)}), 40.0),)
    backend = UserspaceBackend.start(
        LinkPlan(continuum.hosts, {}, access, shared), continuum.namespaces
    )
    together = [
        [(EDGE1, CLOUD), (EDGE1, FOG)],
        [(CLOUD, EDGE1), (FOG, EDGE1)],
        [(FOG, EDGE2), (CLOUD, EDGE2)],
    ]
    seen = [
        carried_mbps(backend, [(continuum.endpoints, pair) for pair in pairs]) for pairs in together
    ]
    backend.close()
    return seen


def test_flows_share_an_uplink_a_downlink_and_a_bottleneck() -> None:
    assert in_sandbox(share) == pytest.approx([30.0, 20.0, 40.0], rel=0.1)


def probe_ipv6(continuum: Continuum) -> dict[str, object]:
    """The probes of the other tests over IPv6, on links of each kind, before and after a change."""
    lossy = {(FOG, EDGE2): Constraint(1.0, loss_percent=20.0)}
    plan = LinkPlan(continuum.hosts, both(CLOUD, EDGE1, Constraint(10.0, rate_mbps=50.0)) | lossy)
    backend = UserspaceBackend.start(plan, continuum.namespaces)
    hosts = continuum.endpoints6
    echo = EchoProbe(CLOUD, EDGE1, count=20, spacing_ms=8.0, patience_ms=200.0)
    seen: dict[str, object] = {"rtt": measure_rtt([echo], hosts, busy=False)[CLOUD, EDGE1]}
    seen["rate"] = measure_rate([RateProbe(CLOUD, EDGE1, 50.0, 10.0, 20.0)], hosts)[CLOUD, EDGE1]
    seen["counted"] = backend.counters()[CLOUD, EDGE1]
    loss = measure_loss([LossProbe(FOG, EDGE2, count=2000, per_s=4000.0, patience_ms=20.0)], hosts)[
        FOG, EDGE2
    ]
    seen["loss"] = 100 * loss.lost / loss.sent
    backend.change({(CLOUD, EDGE1): Constraint(40.0)})
    seen["changed"] = measure_rtt([echo], hosts, busy=False)[CLOUD, EDGE1]
    seen["discarded"] = backend.discarded()
    backend.close()
    return seen


def test_links_mean_the_same_to_ipv6() -> None:
    seen = in_sandbox(probe_ipv6)
    assert seen["rtt"] == pytest.approx(20.0, abs=2.0)
    assert seen["rate"] == pytest.approx(50.0, rel=0.1)
    assert seen["counted"].bytes > 1e6  # type: ignore[attr-defined]
    assert seen["loss"] == pytest.approx(20.0, abs=4.0)
    assert seen["changed"] == pytest.approx(50.0, abs=2.0)
    assert seen["discarded"] == Discarded(0, 0, 0), "no neighbour discovery, no multicast"


def share_between_families(continuum: Continuum) -> list[float]:
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
        carried_mbps(backend, [(continuum.endpoints, four), (continuum.endpoints6, six)])
        for four, six in together
    ]
    backend.close()
    return seen


def test_ipv4_and_ipv6_share_what_there_is() -> None:
    assert in_sandbox(share_between_families) == pytest.approx([24.0, 30.0, 20.0, 40.0], rel=0.1)


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
        receiver.settimeout(5.0)
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
    assert 5.0 <= alone_ms < 15.0
    assert 5.0 + 50 * 1514 * 8e-3 / 20 <= behind_ms < 60.0


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
    time.sleep(0.05)
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
    deadline = time.monotonic() + 5.0
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
    tun.CLONE_DEVICE = Path("/run/no-tun")  # type: ignore[misc]  # in the sandbox's own process
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


def ordinary(continuum: Continuum) -> tuple[bool, list[float | None]]:
    plan = LinkPlan(continuum.hosts, both(CLOUD, EDGE1, Constraint(10.0)))
    backend = UserspaceBackend.start(plan, continuum.namespaces)
    measured = rtt_ms(continuum, (CLOUD, EDGE1))
    backend.close()
    return backend.realtime, measured


def test_without_realtime_priority_it_works_and_says_so() -> None:
    realtime, measured = in_sandbox(ordinary, realtime=False)
    assert not realtime
    assert measured == pytest.approx([20.0], abs=10.0)
