"""Requested and measured links under netem and under the userspace emulator.

    python benchmarks/link_table.py           # both in a user-mode kernel, then the emulator here
    python benchmarks/link_table.py --here    # only the emulator here

All combinations of delay, rate and loss are measured in one run on one kernel: round trips by
small ICMP echoes (p50, p99), rates by TCP (by UDP on links with loss), losses by paced datagrams.
The goals: round trips within max(0.3 ms, 1 %) at p50 and within 1 ms at p99, rates within 2 % of
the rate that headers leave, losses within 10 % of their value.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

REPOSITORY = Path(__file__).resolve().parents[1]
# The user-mode kernel imports this file with a path of its own.
if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY / "src"))

from laggard.core.hosts import Host  # noqa: E402
from laggard.core.virtual_time import Dilation  # noqa: E402
from laggard.layers_services.local.namespaces import create_namespaces  # noqa: E402
from laggard.network_emulation.fidelity.measure import (  # noqa: E402
    PRIORITY,
    busy_cores,
    measure_loss,
    measure_rate,
)
from laggard.network_emulation.fidelity.probes.datagrams import (  # noqa: E402
    DATAGRAM_WIRE_BYTES,
    LossProbe,
)
from laggard.network_emulation.fidelity.probes.echo import (  # noqa: E402
    SMALL_BYTES,
    EchoProbe,
    sample_echoes,
)
from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint  # noqa: E402
from laggard.network_emulation.fidelity.probes.stream import RateProbe  # noqa: E402
from laggard.network_emulation.forked import run_forked  # noqa: E402
from laggard.network_emulation.link_plan import Constraint, LinkPlan, Pair  # noqa: E402
from laggard.network_emulation.links.backend import LinkBackend  # noqa: E402
from laggard.network_emulation.links.tcp_settings import configure_tcp_of  # noqa: E402
from laggard.network_emulation.realtime import become_punctual  # noqa: E402

DELAYS_MS = (0.0, 1.0, 5.0, 25.0, 100.0)
RATES_MBPS = (1.0, 10.0, 100.0, 1000.0)
LOSSES_PERCENT = (0.0, 1.0, 5.0)
FASTEST_IN_KERNEL_MBPS = 100.0
AT_ONCE = 4
# With headers of Ethernet, IPv4 and ICMP: 14, 20 and 8 bytes.
ECHO_BYTES = SMALL_BYTES + 42
ECHOES = 400
LOSS_S = 8.0


@dataclass(frozen=True)
class Row:
    """One combination: requested and measured values, with round trips of a whole echo in ms."""

    delay_ms: float
    rate_mbps: float
    loss_percent: float
    rtt_ms: float
    p50_ms: float
    p99_ms: float
    got_mbps: float
    lost_percent: float | None
    datagrams: int

    def misses(self) -> str:
        """Return the missed goals, separated by commas."""
        missed = []
        if (
            abs(self.p50_ms - self.rtt_ms) > max(0.3, 0.01 * self.rtt_ms)
            or self.p99_ms - self.rtt_ms > 1.0
        ):
            missed.append("rtt")
        if abs(self.got_mbps / self.rate_mbps - 1) > 0.02:
            missed.append("rate")
        if self.lost_percent is not None and abs(self.lost_percent / self.loss_percent - 1) > 0.1:
            missed.append("loss")
        return ", ".join(missed)


class Table:
    """Hosts in pairs, whose links take each combination in turn."""

    def __init__(
        self,
        start: Callable[[LinkPlan], LinkBackend],
        hosts: Sequence[Host],
        paths: dict[str, Path],
    ) -> None:
        self._pairs = [(hosts[2 * i].name, hosts[2 * i + 1].name) for i in range(AT_ONCE)]
        self._endpoints = {
            host.name: ProbeEndpoint(paths[host.name], host.address) for host in hosts
        }
        named = [each for pair in self._pairs for each in (pair, pair[::-1])]
        self._backend = start(
            LinkPlan(tuple(hosts), dict.fromkeys(named, Constraint(delay_ms=1.0, rate_mbps=10.0)))
        )

    def rows(self, fastest_mbps: float, datagrams_per_s: float) -> list[Row]:
        """Measure every combination up to a rate."""
        wanted = [
            Constraint(delay_ms=delay, rate_mbps=rate, loss_percent=loss)
            for delay, rate, loss in itertools.product(DELAYS_MS, RATES_MBPS, LOSSES_PERCENT)
            if rate <= fastest_mbps
        ]
        rows = []
        for i in range(0, len(wanted), AT_ONCE):
            rows += self._group(
                dict(zip(self._pairs, wanted[i : i + AT_ONCE], strict=False)), datagrams_per_s
            )
        self._backend.close()
        return rows

    def _group(self, group: dict[Pair, Constraint], datagrams_per_s: float) -> list[Row]:
        self._backend.change(
            {each: given for pair, given in group.items() for each in (pair, pair[::-1])}
        )
        trips = self._round_trips(group)
        rates = {pair: self._rate(pair, given) for pair, given in group.items()}
        losses = self._losses(group, datagrams_per_s)
        rows = []
        for pair, given in group.items():
            assert given.rate_mbps is not None
            # An echo waits for its own transmission, too, on the way there and back.
            asked_ms = 2 * (given.delay_ms + ECHO_BYTES * 8e-3 / given.rate_mbps)
            cuts = statistics.quantiles(trips[pair], n=100, method="inclusive")
            lost, sent = losses.get(pair, (None, 0))
            asked = (given.delay_ms, given.rate_mbps, given.loss_percent)
            rows.append(
                Row(
                    *asked,
                    asked_ms,
                    statistics.median(trips[pair]),
                    cuts[98],
                    rates[pair],
                    lost,
                    sent,
                )
            )
        return rows

    def _round_trips(self, group: dict[Pair, Constraint]) -> dict[Pair, list[float]]:
        probes = []
        for pair, given in group.items():
            assert given.rate_mbps is not None
            spacing_ms = max(6.0, 20.0 / given.rate_mbps)
            probes.append(EchoProbe(*pair, ECHOES, spacing_ms, 2 * given.delay_ms + 100.0))

        def sample() -> dict[Pair, list[float]]:
            become_punctual(PRIORITY)
            return {
                pair: [ns / 1e6 for ns in e.small_ns]
                for pair, e in sample_echoes(probes, self._endpoints).items()
            }

        with busy_cores(len(os.sched_getaffinity(0))):
            return run_forked("echoes", sample)

    def _rate(self, pair: Pair, given: Constraint) -> float:
        assert given.rate_mbps is not None
        transport = "udp" if given.loss_percent else "tcp"
        loss = given.loss_percent / 100
        probe = RateProbe(
            *pair, given.rate_mbps, given.delay_ms, 2 * given.delay_ms, transport, loss
        )  # type: ignore[arg-type]
        return measure_rate([probe], self._endpoints)[pair]

    def _losses(self, group: dict[Pair, Constraint], per_s: float) -> dict[Pair, tuple[float, int]]:
        probes = []
        for pair, given in group.items():
            assert given.rate_mbps is not None
            # At most half the link's rate, so that congestion adds no losses.
            pace = min(per_s, 0.5 * given.rate_mbps * 1.25e5 / DATAGRAM_WIRE_BYTES)
            if given.loss_percent:
                probes.append(LossProbe(*pair, int(pace * LOSS_S), pace, given.delay_ms))
        counts = measure_loss(probes, self._endpoints)
        return {
            pair: (100.0 * count.lost / count.sent, count.sent) for pair, count in counts.items()
        }


def make_hosts() -> tuple[Host, ...]:
    """Create enough hosts for pairs that share no host."""
    return tuple(
        Host(f"edge.s.1.{i}", "edge", "s", 1, i, f"10.77.0.{i}") for i in range(1, 2 * AT_ONCE + 1)
    )


def userspace(fastest_mbps: float, datagrams_per_s: float) -> list[Row]:
    """Measure the userspace emulator, inside a sandbox."""
    from laggard.network_emulation.links.userspace import UserspaceBackend

    hosts = make_hosts()
    paths = dict(create_namespaces(hosts, "tun").paths)
    return Table(lambda plan: UserspaceBackend.start(plan, paths), hosts, paths).rows(
        fastest_mbps, datagrams_per_s
    )


def netem(fastest_mbps: float, datagrams_per_s: float) -> list[Row]:
    """Measure netem, inside a sandbox of a kernel that has it."""
    from laggard.layers_services.local.provider import enoslib_roles
    from laggard.network_emulation.links.netem import NetemBackend

    hosts = make_hosts()
    namespaces = create_namespaces(hosts, "bridge")
    configure_tcp_of(namespaces.paths, Dilation())

    def start(plan: LinkPlan) -> LinkBackend:
        roles, networks = enoslib_roles(plan.hosts)
        return NetemBackend.start(plan, roles, networks, namespaces.ports, deployment="direct")

    return Table(start, hosts, dict(namespaces.paths)).rows(fastest_mbps, datagrams_per_s)


def in_sandbox(
    body: Callable[[float, float], list[Row]], fastest_mbps: float, per_s: float
) -> list[dict[str, object]]:
    """Run a measurement in a sandbox of its own and return its rows."""
    from laggard.layers_services.local import sandbox

    # /tmp may be read-only in the user-mode kernel.
    with tempfile.NamedTemporaryFile(
        dir=os.environ.get("HOME") if not os.access("/tmp", os.W_OK) else None  # noqa: S108
    ) as answer:

        def inside() -> int:
            rows = [asdict(row) for row in body(fastest_mbps, per_s)]
            os.pwrite(answer.fileno(), json.dumps(rows).encode(), 0)
            return 0

        if sandbox.run_in_sandbox(inside):
            raise SystemExit("a measurement in the sandbox failed; its error is above")
        return cast("list[dict[str, object]]", json.loads(Path(answer.name).read_text()))


IN_KERNEL = """
    sys.path.insert(0, BENCHMARKS)
    from laggard.layers_services.local.provider import use_namespace_connection
    use_namespace_connection()
    import link_table
    result([link_table.in_sandbox(each, link_table.FASTEST_IN_KERNEL_MBPS, 1000.0) for each in (link_table.netem, link_table.userspace)])
"""


def show(title: str, found: Sequence[dict[str, object]]) -> None:
    """Print one table and the number of missed goals."""
    rows = [Row(**each) for each in found]  # type: ignore[arg-type]
    print(f"\n{title}\n")
    print(
        "| delay, ms | rate, Mbit/s | loss, % | RTT requested, ms | p50 | p99 | rate measured |"
        " lost, % (of) | missed goals |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        lost = "" if row.lost_percent is None else f"{row.lost_percent:.2f} ({row.datagrams})"
        cells = (
            f"{row.delay_ms:g}", f"{row.rate_mbps:g}", f"{row.loss_percent:g}", f"{row.rtt_ms:.2f}", f"{row.p50_ms:.2f}",
            f"{row.p99_ms:.2f}", f"{row.got_mbps:.4g}", lost, row.misses(),
        )  # fmt: skip
        print(f"| {' | '.join(cells)} |")
    for kind in ("rtt", "rate", "loss"):
        print(
            f"{kind}: {sum(kind in row.misses() for row in rows)} of {len(rows)} rows miss the"
            " goal",
            flush=True,
        )


def main() -> None:
    """Print three tables."""
    if "--here" not in sys.argv:
        sys.path.insert(0, str(REPOSITORY))
        from tests.uml import kernel

        with tempfile.TemporaryDirectory() as folder:
            script = IN_KERNEL.replace("BENCHMARKS", repr(str(REPOSITORY / "benchmarks")))
            modules = (*kernel.LINK_MODULES, "tun")
            found = cast(
                "list[list[dict[str, object]]]",
                kernel.boot(script, Path(folder), modules=modules, memory="2G", limit_s=2400),
            )
        show("Netem, user-mode kernel", found[0])
        show("Userspace emulator, user-mode kernel", found[1])
    show(
        "Userspace emulator, this kernel, all cores busy during round trips",
        in_sandbox(userspace, RATES_MBPS[-1], 5000.0),
    )


if __name__ == "__main__":
    main()
