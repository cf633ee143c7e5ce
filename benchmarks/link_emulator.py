"""Exactness and cost of the userspace link emulator.

    python benchmarks/link_emulator.py        (as root; half a minute)

It runs in a sandbox and prints a table; `link_emulator.md` has the results of the last run.
"""

from __future__ import annotations

import ctypes
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path

from laggard.core.hosts import Host
from laggard.layers_services.local import sandbox
from laggard.layers_services.local.namespaces import create_namespaces
from laggard.network_emulation.fidelity.measure import EchoProbe, measure_rtt
from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint, listener_in, socket_in
from laggard.network_emulation.forked import end_companion, fork_companion
from laggard.network_emulation.link_plan import Constraint, LinkPlan, Pair
from laggard.network_emulation.links.userspace import UserspaceBackend

FLOOD_S = 3.0
REPEATS = 5
# Payload per Ethernet frame of a full-size TCP segment with timestamps (MTU 1500).
HEADERS_LEAVE = 1448 / 1514
_CAP_SYS_NICE, _PR_CAPBSET_DROP = 23, 24


def make_hosts(count: int) -> tuple[Host, ...]:
    """Create hosts of one layer, with addresses."""
    return tuple(
        Host(f"edge.s.1.{i + 1}", "edge", "s", 1, i + 1, f"10.77.0.{i + 1}") for i in range(count)
    )


def between_all(hosts: Sequence[Host], constraint: Constraint) -> dict[Pair, Constraint]:
    """Apply the same constraint to all ordered pairs of hosts."""
    return {(a.name, b.name): constraint for a, b in permutations(hosts, 2)}


class Bench:
    """Hosts, and an emulator that is started anew for every measurement."""

    def __init__(self, count: int) -> None:
        self.hosts = make_hosts(count)
        made = create_namespaces(self.hosts, "tun")
        self.namespaces = {host.name: made.path(host.name) for host in self.hosts}
        self.endpoints = {
            host.name: ProbeEndpoint(self.namespaces[host.name], host.address)
            for host in self.hosts
        }

    def start(self, constraints: Mapping[Pair, Constraint]) -> UserspaceBackend:
        """Start the emulator with these constraints."""
        return UserspaceBackend.start(LinkPlan(self.hosts, constraints), self.namespaces)

    def flood(self, constraint: Constraint, flows: int) -> tuple[float, float]:
        """Measure disjoint TCP flows, all at once.

        Returns:
            Goodput of all flows together in Mbit/s, and the emulator's part of a core meanwhile.
        """
        backend = self.start(between_all(self.hosts, constraint))
        pairs = [(self.hosts[2 * i].name, self.hosts[2 * i + 1].name) for i in range(flows)]
        before = _cpu_s(backend.pid)
        rates = flood(pairs, self.endpoints)
        used = (_cpu_s(backend.pid) - before) / FLOOD_S
        backend.close()
        return sum(rates), used

    def rtt_errors_ms(self, delay_ms: float, realtime: bool) -> list[float]:
        """Return the errors of the median round trips of eight pairs, with all cores busy."""
        backend = self.start(between_all(self.hosts, Constraint(delay_ms)))
        if backend.realtime is not realtime:
            raise SystemExit(
                f"cannot measure this row: the emulator's real-time priority is {backend.realtime},"
                f" but the row needs {realtime} — run this benchmark as root"
            )
        pairs = [(a.name, b.name) for a, b in permutations(self.hosts, 2)][:8]
        probes = [
            EchoProbe(*pair, count=80, spacing_ms=12.0, patience_ms=4 * delay_ms + 100)
            for pair in pairs
        ]
        measured = measure_rtt(probes, self.endpoints)
        backend.close()
        return [rtt - 2 * delay_ms for rtt in measured.values() if rtt is not None]


def flood(pairs: Sequence[Pair], endpoints: Mapping[str, ProbeEndpoint]) -> list[float]:
    """Return the goodput of one TCP flow per pair, all at once, without the first second.

    Slow start is over by then.
    """
    pipes, children = [], []
    for src, dst in pairs:
        listener = listener_in(endpoints[dst], socket.SOCK_STREAM)
        reading, writing = os.pipe()
        pipes.append(reading)
        children.append(
            fork_companion("receiver", lambda lis=listener, out=writing: _receive(lis, out))
        )
        sender, address = socket_in(endpoints[src], socket.SOCK_STREAM), listener.getsockname()
        children.append(fork_companion("sender", lambda s=sender, to=address: _send(s, to)))
        listener.close()
        sender.close()
        os.close(writing)
    rates = [float(os.read(reading, 64)) for reading in pipes]
    for child in children:
        end_companion(child)
    return rates


def _receive(listener: socket.socket, out: int) -> int:
    listener.settimeout(10.0)
    peer, _ = listener.accept()
    buffer, start_s = bytearray(1 << 18), time.monotonic()
    marks: list[tuple[float, int]] = []
    total = 0
    while (now_s := time.monotonic()) < start_s + FLOOD_S:
        total += peer.recv_into(buffer)
        if now_s > start_s + 1.0:
            marks.append((now_s, total))
    os.write(out, str((marks[-1][1] - marks[0][1]) * 8e-6 / (marks[-1][0] - marks[0][0])).encode())
    return 0


def _send(sender: socket.socket, address: tuple[str, int]) -> int:
    sender.settimeout(10.0)
    sender.connect(address)
    try:
        while True:
            sender.sendall(bytes(1 << 18))
    except (BrokenPipeError, ConnectionResetError):
        return 0  # the receiver has closed the connection after its measurement


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def in_sandbox(hosts: int, body: Callable[[Bench], None]) -> None:
    """Run a measurement with so many hosts in a sandbox."""

    def controller() -> int:
        body(Bench(hosts))
        sys.stdout.flush()
        return 0

    if sandbox.run_in_sandbox(controller):
        raise SystemExit("a measurement in the sandbox failed; its error is above")


def show(what: str, value: str) -> None:
    """Print one row of the table."""
    print(f"| {what} | {value} |")


def bring_up(bench: Bench) -> None:
    """Measure the start of the emulator and its memory."""
    start_s = time.monotonic()
    backend = bench.start(between_all(bench.hosts, Constraint(5.0, rate_mbps=100.0)))
    took_s = time.monotonic() - start_s
    pss_kb = next(
        line.split()[1]
        for line in (
            Path(f"/proc/{backend.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        )
        if line.startswith("Pss:")
    )
    show(
        f"bring-up, {len(bench.hosts)} hosts",
        f"{took_s:.2f} s, emulator {int(pss_kb) / 1024:.0f} MiB (PSS)",
    )
    backend.close()


def accuracy(kind: str, realtime: bool) -> Callable[[Bench], None]:
    """Return a measurement of round trips with all cores busy."""

    def body(bench: Bench) -> None:
        for delay_ms in (0.5, 5.0, 50.0):
            errors = [
                error for _ in range(REPEATS) for error in bench.rtt_errors_ms(delay_ms, realtime)
            ]
            worst = max(errors, key=abs)
            show(
                f"error of a round trip of {2 * delay_ms:g} ms, all cores busy, {kind}",
                f"{statistics.median(errors):+.2f} ms (median of {len(errors)}), {worst:+.2f} ms"
                " (worst)",
            )

    return body


def throughput(bench: Bench) -> None:
    """Measure a single flow at several rates and unconstrained."""
    for rate in (10.0, 100.0, 1000.0):
        goodput, used = bench.flood(Constraint(5.0, rate_mbps=rate), flows=1)
        share = goodput / (rate * HEADERS_LEAVE)
        show(
            f"one flow at {rate:g} Mbit/s, 5 ms",
            f"{share:.1%} of the rate that headers leave, {used:.0%} of a core",
        )
    goodput, used = bench.flood(Constraint(), flows=1)
    show("one flow, unconstrained", f"{goodput / 1e3:.1f} Gbit/s goodput, {used:.0%} of a core")


def many(bench: Bench) -> None:
    """Measure six flows at once between twelve hosts."""
    goodput, used = bench.flood(Constraint(5.0, rate_mbps=100.0), flows=6)
    share = goodput / (600.0 * HEADERS_LEAVE)
    show(
        "12 hosts, 132 pairs, 6 flows at 100 Mbit/s",
        f"{share:.1%} of the rate that headers leave, {used:.0%} of a core",
    )


def main() -> None:
    """Print the table; for the last rows, restart without the right to real-time priority."""
    print("| quantity | measured |\n|---|---|", flush=True)
    for count in (4, 12, 32):
        in_sandbox(count, bring_up)
    in_sandbox(4, throughput)
    in_sandbox(12, many)
    in_sandbox(4, accuracy("real-time priority", realtime=True))
    ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_SYS_NICE, 0, 0, 0)
    # Capabilities are reduced to the bounding set only when a program is executed.
    os.execve(  # noqa: S606 - itself
        sys.executable, [sys.executable, __file__], os.environ | {"LAGGARD_BENCH_ORDINARY": "1"}
    )


if __name__ == "__main__":
    if os.environ.get("LAGGARD_BENCH_ORDINARY"):
        in_sandbox(4, accuracy("ordinary priority", realtime=False))
    else:
        main()
