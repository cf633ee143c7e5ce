"""Check that true clock offsets lie inside the estimated bounds.

    python benchmarks/clocks.py [SECONDS]        (as root; prints Markdown)

Twenty nodes at once exchange datagrams with one reference. Each node has a clock whose random skew
and drift are known exactly. The emulated links have 5 ms there and 5 or 40 ms back; a flood fills
and drains ten of them every two seconds. The exchanges are those of a run: 40 before, one burst
per second for ten seconds (or SECONDS), 40 after. `clocks.md` has the results of the last run.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.clocks.timestamps import ClockExchange
from laggard.core.hosts import Host
from laggard.core.linux import inside_network
from laggard.layers_services.local import sandbox
from laggard.layers_services.local.namespaces import create_namespaces
from laggard.layers_services.ssh.clock_exchange import Exchanger, Responder, exchange_clocks
from laggard.network_emulation.forked import end_companion, fork_companion
from laggard.network_emulation.link_plan import Constraint, LinkPlan
from laggard.network_emulation.links.userspace import UserspaceBackend

NODES = 20
DURING_S = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
INSTANTS = 13
SEED = 3
RATE_MBPS = 4.0
THERE_MS = 5.0
SECOND = 1_000_000_000
_PACKET = 1472  # largest UDP payload of a packet of 1500 bytes
# With headers of Ethernet, IPv4 and UDP: 14, 20 and 8 bytes.
_WIRE_BITS = (_PACKET + 42) * 8


@dataclass(frozen=True)
class Node:
    """Machine with a clock of its own.

    Attributes:
        host: the machine.
        back_ms: delay of the link from the reference, in ms.
        loaded: whether a flood loads its links.
        skew_ns: time by which its clock is ahead at `origin_ns`.
        drift_ppb: parts per billion by which its clock is faster.
        origin_ns: true time at which only the skew applies.
    """

    host: Host
    back_ms: float
    loaded: bool
    skew_ns: int
    drift_ppb: int
    origin_ns: int

    def clock(self) -> int:
        """Return the present time of the node's clock."""
        return self.shown(time.monotonic_ns())

    def shown(self, true_ns: int) -> int:
        """Return the time that the clock shows at a true time.

        Integers keep the truth exact.
        """
        return true_ns + self.skew_ns + (true_ns - self.origin_ns) * self.drift_ppb // SECOND


@dataclass(frozen=True)
class Seen:
    """Record of one node.

    Attributes:
        exchanges: its exchanges as JSON lines.
        start_ns: true time of the begin.
        end_ns: true time of the end.
        core_share: part of a core that it used during the bursts.
    """

    exchanges: tuple[str, ...]
    start_ns: int
    end_ns: int
    core_share: float


def make_nodes(chance: random.Random) -> tuple[Host, tuple[Node, ...]]:
    """Create the reference and the nodes with random clocks."""
    now_ns = time.monotonic_ns()
    hosts = [
        Host(f"edge.node.1.{i + 1}", "edge", "node", 1, i + 1, f"10.77.1.{i + 1}")
        for i in range(NODES)
    ]
    nodes = tuple(
        Node(
            host,
            back_ms=5.0 if i < NODES // 2 else 40.0,
            loaded=i % 2 == 1,
            skew_ns=chance.randint(-1000 * SECOND, 1000 * SECOND),
            drift_ppb=chance.randint(-200_000, 200_000),
            origin_ns=now_ns,
        )
        for i, host in enumerate(hosts)
    )
    return Host("cloud.reference.1.1", "cloud", "reference", 1, 1, "10.77.0.1"), nodes


def observe(reference: Host, nodes: Sequence[Node], folder: Path) -> None:
    """Start everything inside the sandbox and let every node write its record."""
    hosts = (reference, *(node.host for node in nodes))
    made = create_namespaces(hosts, "tun")
    pairs = {}
    for node in nodes:
        pairs[node.host.name, reference.name] = Constraint(THERE_MS, rate_mbps=RATE_MBPS)
        pairs[reference.name, node.host.name] = Constraint(node.back_ms, rate_mbps=RATE_MBPS)
    backend = UserspaceBackend.start(LinkPlan(hosts, pairs), made.paths)
    with inside_network(made.path(reference.name)):
        responder = Responder(reference.address)
    stop, stopping = os.pipe()
    answering = fork_companion(
        "responder", lambda: respond(responder, stop, stopping, folder / "responder")
    )
    flooding = fork_companion("flood", lambda: flood(reference, nodes, made.paths))
    asking = [
        fork_companion(
            node.host.name[-15:], lambda each=node: ask(each, reference, made.paths, folder)
        )
        for node in nodes
    ]
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in asking)
    end_companion(flooding)
    os.close(stopping)
    os.waitpid(answering, 0)
    backend.close()
    if failed:
        raise SystemExit(f"{failed} of {len(nodes)} nodes failed; their errors are above")


def respond(responder: Responder, stop: int, stopping: int, report: Path) -> int:
    """Answer exchanges as the reference until stopped."""
    os.close(stopping)
    start_s = time.monotonic()
    responder.serve(stop)
    share = time.process_time() / (time.monotonic() - start_s)
    report.write_text(json.dumps([responder.answered, share]), encoding="utf-8")
    return 0


def ask(node: Node, reference: Host, namespaces: Mapping[str, Path], folder: Path) -> int:
    """Exchange timestamps as one node, and write its record."""
    with inside_network(namespaces[node.host.name]):
        start_ns = time.monotonic_ns()
        found = list(exchange_clocks(reference.address, patience_s=5.0, clock=node.clock))
        used_s = time.process_time()
        with Exchanger(reference.address, clock=node.clock) as exchanger:
            until_s = time.monotonic() + DURING_S
            while (left_s := until_s - time.monotonic()) > 0:
                select.select([exchanger], [], [], min(left_s, exchanger.due_s or 0.0))
                found += exchanger.step()
        used_s = time.process_time() - used_s
        found += exchange_clocks(reference.address, patience_s=5.0, clock=node.clock)
    end_ns = time.monotonic_ns()
    lines = [each.to_json() for each in found]
    (folder / node.host.name).write_text(
        json.dumps([lines, start_ns, end_ns, used_s / DURING_S]), encoding="utf-8"
    )
    return 0


def flood(reference: Host, nodes: Sequence[Node], namespaces: Mapping[str, Path]) -> int:
    """Send one and a half times the rate of the loaded links, both ways, every other second.

    It makes queues of up to half a second.
    """
    sockets = []
    for node in nodes:
        if node.loaded:
            for source, target in ((node.host, reference), (reference, node.host)):
                with inside_network(namespaces[source.name]):
                    sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                sockets[-1].setblocking(False)
                sockets[-1].connect((target.address, 9))
    start_s, sent = time.monotonic(), 0
    while True:
        passed_s = time.monotonic() - start_s
        due = (passed_s // 2 + min(passed_s % 2, 1.0)) * 1.5 * RATE_MBPS * 1e6 / _WIRE_BITS
        while sent < due:
            for each in sockets:
                try:
                    each.send(bytes(_PACKET))
                except (ConnectionRefusedError, BlockingIOError):
                    continue  # no listener or a full queue: the load is sufficient either way
            sent += 1
        time.sleep(0.002)


def show(nodes: Sequence[Node], folder: Path) -> None:
    """Print the table and a summary."""
    # Imported late, because numpy starts threads and the sandbox is entered by forks.
    import numpy as np

    from laggard.core.clocks.clock_fit import fit_clock

    print(
        "| link back | load | true skew (s) | estimated (s) | true drift (ppm) | estimated (ppm) |"
        " worst error | bound | instants inside |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    inside, shares, ratios, slowest_ms = 0, [], [], []
    for node in nodes:
        seen = Seen(*json.loads((folder / node.host.name).read_text(encoding="utf-8")))
        exchanges = [ClockExchange.from_json(line) for line in seen.exchanges]
        fit = fit_clock(exchanges)
        # From a tenth of the run before its first exchange to a tenth after its last.
        true_ns = [
            seen.start_ns + (seen.end_ns - seen.start_ns) * (i - 1) // (INSTANTS - 3)
            for i in range(INSTANTS)
        ]
        local = np.array([node.shown(each) for each in true_ns], dtype=np.int64)
        wrong, bound = np.abs(fit.to_reference(local) - np.array(true_ns)), fit.error_ns(local)
        hits = int((wrong <= bound).sum())
        middle = INSTANTS // 2
        # The fit maps the node's clock to the reference, so its drift is the inverse.
        drift_ppm = (1 / (1 + node.drift_ppb / SECOND) - 1) * 1e6
        pieces = ", ".join(
            f"{piece.drift_ppm:+.1f} ± {piece.drift_error_ppm:.1f}" for piece in fit.drift_pieces
        )
        print(
            f"| {node.back_ms:g} ms | {'flood' if node.loaded else 'none'} |"
            f" {(true_ns[middle] - int(local[middle])) / SECOND:.6f} |"
            f" {int(fit.offset_at(local)[middle]) / SECOND:.6f} | {drift_ppm:+.1f} | {pieces} |"
            f" {wrong.max() / 1e6:.3f} ms | {bound.max() / 1e6:.3f} ms | {hits} of {INSTANTS} |"
        )
        inside += hits
        shares.append(seen.core_share)
        # Without assumptions about asymmetry, half the round trip is the best possible bound.
        ratios.append(float(bound[1:-1].max()) / 1e6 - (THERE_MS + node.back_ms) / 2)
        slowest_ms.append(max(each.returned_ns - each.sent_ns for each in exchanges) / 1e6)
    answered, share = json.loads((folder / "responder").read_text(encoding="utf-8"))
    print(f"\n- True time inside the bound: {inside} of {NODES * INSTANTS} instants.")
    print(
        f"- Bound minus half the empty links' round trip: {np.median(ratios):.3f} ms (median),"
        f" {max(ratios):.3f} ms (worst)."
    )
    # Every second node is loaded.
    print(
        f"- Slowest exchange: {max(slowest_ms):.0f} ms; on loaded links"
        f" {np.median(slowest_ms[1::2]):.0f} ms (median of nodes)."
    )
    print(
        f"- One node's exchanges, one burst a second: {np.median(shares):.3%} of a core (median of"
        f" {NODES}), {max(shares):.3%} (worst)."
    )
    print(
        f"- The responder sent {answered} answers and used {share:.3%} of a core for {NODES} nodes."
    )


def main() -> None:
    """Measure and print Markdown."""
    reference, nodes = make_nodes(random.Random(SEED))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def controller() -> int:
            observe(reference, nodes, folder)
            return 0

        if sandbox.run_in_sandbox(controller):
            raise SystemExit("a measurement in the sandbox failed; its error is above")
        print(
            f"Linux {os.uname().release}, load average {os.getloadavg()[0]:.1f}, seed {SEED},"
            f" {DURING_S:g} s of bursts.\n"
        )
        show(nodes, folder)


if __name__ == "__main__":
    main()
