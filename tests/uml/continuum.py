"""Inside a kernel of its own: hosts on a bridge as namespaces, and what one sees from another.
Imported by guest scripts."""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import socket
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.hosts import Host
from laggard.network_emulation.probe import kernel_has_ipv6

if TYPE_CHECKING:
    from enoslib.objects import Host as EnosHost

NAMESPACES = Path("/run/netns")
_NEW_NETWORK = 0x40000000
_TCP_CONGESTION = 13
_SO_RCVBUFFORCE = 33


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def hosts(**layers: int) -> tuple[Host, ...]:
    """With IPv6 addresses where the kernel has been given its module."""
    names = [(layer, i) for layer, count in layers.items() for i in range(1, count + 1)]
    made = tuple(
        Host(
            f"{layer}.trainer.1.{i}",
            layer,
            "trainer",
            1,
            i,
            f"10.77.0.{number}",
            ipv6=(f"fd77::{number:x}",),
        )
        for number, (layer, i) in enumerate(names, 1)
    )
    return made if kernel_has_ipv6() else tuple(replace(host, ipv6=()) for host in made)


def over_ipv6(host: Host) -> Host:
    """The same host as who sends to it over IPv6 knows it."""
    return replace(host, address=host.ipv6[0])


def family(host: Host) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host.address else socket.AF_INET


def everywhere(host: Host, port: int) -> tuple[str, int]:
    """Where a server in the host listens."""
    return ("::" if family(host) == socket.AF_INET6 else "0.0.0.0", port)


def create(continuum: Sequence[Host]) -> dict[str, str]:
    """Namespaces, a bridge and veth pairs; returns the bridge's port of each host."""
    run("ip", "link", "add", "continuum", "type", "bridge")
    run("ip", "link", "set", "continuum", "up")
    ports = {host.name: f"port{number}" for number, host in enumerate(continuum, 1)}
    for host in continuum:
        port, name = ports[host.name], host.name
        run("ip", "netns", "add", name)
        run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", port, "master", "continuum", "up")
        run("ip", "-n", name, "addr", "add", f"{host.address}/16", "dev", "eth0")
        for address in host.ipv6:
            run("ip", "-n", name, "addr", "add", f"{address}/64", "dev", "eth0", "nodad")
        run("ip", "-n", name, "link", "set", "eth0", "up")
    return ports


def enoslib_roles(continuum: Sequence[Host]) -> dict[str, list[EnosHost]]:
    from enoslib.objects import DefaultNetwork, Host, IPAddress, NetDevice

    network = DefaultNetwork("10.77.0.0/16")
    return {
        host.name: [
            Host(
                host.address,
                alias=host.name,
                net_devices={NetDevice("eth0", {IPAddress(f"{host.address}/16", network)})},
            )
        ]
        for host in continuum
    }


class Inside:
    """A function running in a host's namespace, in a process of its own."""

    def __init__(self, host: Host, function: Callable[[], object]) -> None:
        self._answer, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._child(host, function, write)
        os.close(write)

    @staticmethod
    def _child(host: Host, function: Callable[[], object], write: int) -> None:
        try:
            descriptor = os.open(NAMESPACES / host.name, os.O_RDONLY)
            assert ctypes.CDLL(None).setns(descriptor, _NEW_NETWORK) == 0
            with os.fdopen(write, "wb") as answer:
                pickle.dump(function(), answer)
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(0)

    def answer(self) -> object:
        with os.fdopen(self._answer, "rb") as stream:
            value = pickle.load(stream)
        os.waitpid(self.pid, 0)
        return value


def serving(host: Host, serve: Callable[[Callable[[], None]], object]) -> Inside:
    """A server in a host's namespace, once it has called the function that it is given: it
    listens."""
    read, write = os.pipe()
    server = Inside(host, lambda: serve(lambda: os.close(write)))
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)
    return server


def _echo(host: Host, ready: Callable[[], None]) -> None:
    with socket.socket(family(host), socket.SOCK_DGRAM) as server:
        server.bind(everywhere(host, 5002))
        ready()
        while (received := server.recvfrom(2000))[0] != b"end":
            server.sendto(*received)


def rtts_ms(
    src: Host, dst: Host, count: int = 15, early: tuple[int, float] = (0, 0.0)
) -> list[float]:
    """Round-trip times of small datagrams, one at a time; lost ones left out, and the first, which
    may resolve addresses.

    Where ``early`` is (number, milliseconds), up to 15 times ``count`` datagrams are sent, until
    that number took less than that: a busy machine makes early ones rare, and never makes one.
    """
    number, below_ms = early

    def probe() -> list[float]:
        times: list[float] = []
        with socket.socket(family(dst), socket.SOCK_DGRAM) as client:
            client.settimeout(0.5)
            for i in range(15 * count):
                if i > count and sum(took < below_ms for took in times[1:]) >= number:
                    break
                began = time.monotonic()
                client.sendto(b"%d" % i, (dst.address, 5002))
                try:
                    while client.recv(2000) != b"%d" % i:
                        pass
                except TimeoutError:
                    continue
                times.append((time.monotonic() - began) * 1e3)
            for _ in range(20):
                client.sendto(b"end", (dst.address, 5002))
        return times[1:]

    server = serving(dst, lambda ready: _echo(dst, ready))
    times = Inside(src, probe).answer()
    server.answer()
    assert isinstance(times, list)
    return times


def discovered(src: Host, dst: Host, limit_s: float = 3.0) -> bool:
    """Whether a host finds a neighbour that it has forgotten."""
    inside = ("ip", "-n", src.name, "-6", "neigh")
    run(*inside, "flush", "dev", "eth0")

    def send() -> None:
        with socket.socket(family(dst), socket.SOCK_DGRAM) as client:
            client.sendto(b"?", (dst.address, 5004))

    Inside(src, send).answer()
    until = time.monotonic() + limit_s
    while (
        found := "lladdr" in run(*inside, "show", "to", dst.address)
    ) is False and time.monotonic() < until:
        time.sleep(0.05)
    return found


def rtt_ms(src: Host, dst: Host) -> float:
    """The shortest round-trip time: what the links take, without most of what a busy machine
    adds."""
    return min(rtts_ms(src, dst, 30))


def goodput_mbps(*flows: tuple[Host, Host]) -> list[float]:
    """Goodput of one TCP flow per (src, dst), all at once, without the beginning."""
    return [round(flow.late_mbps, 3) for flow in _run_flows(flows)]


def shared_mbps(*flows: tuple[Host, Host]) -> list[float]:
    """Goodput of flows together, from the first arrival of any to the last of any, and the part of
    the least of them.

    Not the sum of each one's own: while one is not yet, or no longer, another may have all of what
    they share.
    """
    received = _run_flows(flows)
    total = sum(flow.total for flow in received)
    took_s = max(flow.last_s for flow in received) - min(flow.first_s for flow in received)
    return [round(total * 8e-6 / took_s, 3), round(min(flow.total for flow in received) / total, 3)]


@dataclass(frozen=True)
class Received:
    """What arrived of a flow: bytes, from when to when, and the rate without the first half
    second."""

    total: int
    first_s: float
    last_s: float
    late_mbps: float


def _run_flows(
    flows: Sequence[tuple[Host, Host]], seconds: float = 2.0, skip_s: float = 0.5
) -> list[Received]:
    def receive(host: Host, port: int) -> Callable[[Callable[[], None]], Received]:
        def serve(ready: Callable[[], None]) -> Received:
            buffer = bytearray(1 << 18)
            with socket.create_server(everywhere(host, port), family=family(host)) as server:
                ready()
                connection = server.accept()[0]
            total, late, since, last, began = 0, 0, 0.0, 0.0, 0.0
            while size := connection.recv_into(buffer):
                last = time.monotonic()
                began = began or last
                total += size
                if last - began < skip_s:
                    continue
                if since:
                    late += size
                else:
                    since = last
            return Received(total, began, last, late * 8e-6 / (last - since))

        return serve

    def send(host: Host, port: int) -> Callable[[], None]:
        def stream() -> None:
            with socket.socket(family(host)) as client:
                client.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, b"cubic")
                client.connect((host.address, port))
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    client.sendall(b"x" * 65536)

        return stream

    receivers = [serving(dst, receive(dst, 5100 + i)) for i, (_, dst) in enumerate(flows)]
    senders = [Inside(src, send(dst, 5100 + i)) for i, (src, dst) in enumerate(flows)]
    for sender in senders:
        sender.answer()
    answers = [receiver.answer() for receiver in receivers]
    assert all(isinstance(answer, Received) for answer in answers)
    return [answer for answer in answers if isinstance(answer, Received)]


def message_ms(src: Host, dst: Host, size: int, count: int = 6) -> float:
    """Shortest time from sending a message on an established TCP connection to its last byte's
    arrival."""
    port = 5300

    def serve(ready: Callable[[], None]) -> list[float]:
        with socket.create_server(("0.0.0.0", port)) as server:
            ready()
            connection = server.accept()[0]
        arrivals = []
        for _ in range(count + 1):
            left = size
            while left:
                left -= len(connection.recv(left))
            arrivals.append(time.monotonic())
            connection.sendall(b"k")
        return arrivals

    def send() -> list[float]:
        starts = []
        with socket.create_connection((dst.address, port)) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(count + 1):
                time.sleep(0.1)
                starts.append(time.monotonic())
                client.sendall(b"x" * size)
                client.recv(1)
        return starts

    receiver = serving(dst, serve)
    starts, arrivals = Inside(src, send).answer(), receiver.answer()
    assert isinstance(starts, list)
    assert isinstance(arrivals, list)
    return min((a - s) * 1e3 for s, a in list(zip(starts, arrivals, strict=True))[1:])


def loss_percent(src: Host, dst: Host, count: int = 2000) -> float:
    """Share of paced datagrams that never arrive."""
    return 100.0 * (1 - len(arrived(src, dst, count)) / count)


def loss_runs(src: Host, dst: Host, count: int) -> list[int]:
    """Lengths of the runs of paced datagrams that never arrive."""
    numbers = [-1, *arrived(src, dst, count), count]
    return [b - a - 1 for a, b in itertools.pairwise(numbers) if b - a > 1]


_SENDER_STARTS_S, _SENDER_RESTS_S = 60.0, 3.0
"""Seconds after which a sender is done: on a busy machine its process can take long to start."""


def arrived(src: Host, dst: Host, count: int) -> list[int]:
    """Numbers of the paced datagrams that arrive, in order."""

    def serve(ready: Callable[[], None]) -> list[int]:
        received = []
        with socket.socket(family(dst), socket.SOCK_DGRAM) as server:
            server.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 24)
            server.bind(everywhere(dst, 5003))
            server.settimeout(_SENDER_STARTS_S)
            ready()
            try:
                while data := server.recv(2000):
                    received.append(int(data))
                    server.settimeout(_SENDER_RESTS_S)
            except TimeoutError:
                return received
        return received

    def send() -> None:
        with socket.socket(family(dst), socket.SOCK_DGRAM) as client:
            for i in range(count):
                client.sendto(b"%064d" % i, (dst.address, 5003))
                if i % 20 == 19:
                    time.sleep(0.005)

    receiver = serving(dst, serve)
    Inside(src, send).answer()
    numbers = receiver.answer()
    assert isinstance(numbers, list)
    return numbers
