"""Onset of timed link changes, measured from outside by paced datagrams.

    python benchmarks/event_onset.py           # the userspace emulator here, then netem in Debian's user-mode kernel
    python benchmarks/event_onset.py --here    # only the emulator

There are 200 random changes while all cores are busy. Four links change between 10 ms and 30 ms at
random moments. Datagrams on each link show its delay over time: the onset of a change is the
sending time of the first datagram with the new delay. It is known up to the spacing of the
datagrams.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

REPOSITORY = Path(__file__).resolve().parents[1]
# The user-mode kernel imports this file with a path of its own.
if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY / "src"))

from laggard.core.errors import EmulationError  # noqa: E402
from laggard.core.hosts import Host  # noqa: E402
from laggard.core.virtual_time import Dilation  # noqa: E402
from laggard.layers_services.local.namespaces import create_namespaces  # noqa: E402
from laggard.network_emulation.dynamics import Scheduler  # noqa: E402
from laggard.network_emulation.dynamics.changes import TimedChange, in_order  # noqa: E402
from laggard.network_emulation.fidelity.measure import PRIORITY, busy_cores  # noqa: E402
from laggard.network_emulation.fidelity.probes.endpoint import (  # noqa: E402
    ProbeEndpoint,
    listener_in,
    socket_in,
)
from laggard.network_emulation.forked import run_forked  # noqa: E402
from laggard.network_emulation.link_plan import Constraint, LinkPlan, Pair  # noqa: E402
from laggard.network_emulation.links.backend import LinkBackend  # noqa: E402
from laggard.network_emulation.realtime import become_punctual  # noqa: E402

CHANGES = 200
SHORT, LONG = Constraint(delay_ms=10.0), Constraint(delay_ms=30.0)
LEAD_S, TAIL_S = 0.5, 0.5
SHORTER_BY_MS = 0.8
"""Least reduction of the delay that counts as the onset of a shorter delay, in ms. A packet sent
just after the change cannot overtake earlier packets, so it arrives only a little sooner than
under the old delay.
"""

_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_STAMP = struct.Struct("=Q")


@dataclass(frozen=True)
class Seen:
    """Datagram: its sending time in ns of CLOCK_REALTIME, and its delay in ms."""

    sent_ns: int
    took_ms: float


def make_hosts(count: int) -> tuple[Host, ...]:
    """Create hosts of one layer, with addresses."""
    return tuple(
        Host(f"edge.s.1.{i}", "edge", "s", 1, i, f"10.77.0.{i}") for i in range(1, count + 1)
    )


def random_changes(pairs: Sequence[Pair], count: int, seed: int) -> tuple[TimedChange, ...]:
    """Create changes that make each link longer and shorter in turn.

    They are at random moments, a quarter of a second to one second apart.
    """
    chance = random.Random(seed)
    changes: list[TimedChange] = []
    for number, pair in enumerate(pairs):
        at_s = LEAD_S
        for i in range(count // len(pairs)):
            at_s += chance.uniform(0.25, 1.0)
            event = number * count + i // 2
            begins = i % 2 == 0
            values = (("delay_ms", LONG.delay_ms),) if begins else ()
            changes.append(TimedChange(at_s, "begin" if begins else "end", event, (pair,), values))
    return in_order(changes)


def watch(
    pairs: Sequence[Pair], hosts: dict[str, ProbeEndpoint], spacing_s: float, until_s: float
) -> dict[Pair, list[Seen]]:
    """Send datagrams on every link and return their delays by the kernel's timestamps.

    Args:
        pairs: links.
        hosts: endpoints by host name.
        spacing_s: seconds between two datagrams.
        until_s: end, in seconds of CLOCK_MONOTONIC.
    """
    become_punctual(PRIORITY)
    receivers = {pair: listener_in(hosts[pair[1]], socket.SOCK_DGRAM) for pair in pairs}
    senders = {pair: socket_in(hosts[pair[0]], socket.SOCK_DGRAM) for pair in pairs}
    by_descriptor = {receiver.fileno(): pair for pair, receiver in receivers.items()}
    poll = select.epoll()
    for pair in pairs:
        receivers[pair].setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        senders[pair].connect(receivers[pair].getsockname())
        poll.register(receivers[pair].fileno(), select.EPOLLIN)
    seen: dict[Pair, list[Seen]] = {pair: [] for pair in pairs}
    next_s = time.monotonic()
    while (now_s := time.monotonic()) < until_s + 0.1:
        if now_s >= next_s and now_s < until_s:
            next_s = max(next_s + spacing_s, now_s)
            for sender in senders.values():
                sender.send(_STAMP.pack(time.time_ns()))
        for descriptor, _ in poll.poll(max(0.0, min(next_s - time.monotonic(), 0.01))):
            pair = by_descriptor[descriptor]
            _drain(receivers[pair], seen[pair])
    return seen


def _drain(receiver: socket.socket, seen: list[Seen]) -> None:
    while True:
        try:
            data, ancillary, _, _ = receiver.recvmsg(64, 64)
        except BlockingIOError:
            return
        seconds, nanoseconds = next(
            _TIMESPEC.unpack_from(value) for _, kind, value in ancillary if kind == _SO_TIMESTAMPNS
        )
        (sent_ns,) = _STAMP.unpack(data)
        seen.append(Seen(sent_ns, (seconds * 1_000_000_000 + nanoseconds - sent_ns) / 1e6))


def onset_ms(
    change: TimedChange, seen: Sequence[Seen], due_ns: int, spacing_ms: float
) -> float | None:
    """Return the delay in ms from a change's due time to its onset.

    Returns None if no datagram within 200 ms has the new delay.
    """
    # From 2 ms before the due time, so that early changes are observed, too.
    later = sorted((s for s in seen if -2e6 <= s.sent_ns - due_ns <= 2e8), key=lambda s: s.sent_ns)
    if change.kind == "begin":
        met = (s for s in later if s.took_ms > (SHORT.delay_ms + LONG.delay_ms) / 2)
    else:
        met = (s for s in later if s.took_ms < LONG.delay_ms - SHORTER_BY_MS)
    first = next(met, None)
    # On average the change came half a spacing before the first datagram that shows it.
    return None if first is None else (first.sent_ns - due_ns) / 1e6 - spacing_ms / 2


def measure(
    start: Callable[[LinkPlan], LinkBackend],
    hosts: Sequence[Host],
    paths: dict[str, Path],
    spacing_ms: float,
) -> dict[str, object]:
    """Return the errors of all changes, as recorded and as observed, in ms."""
    names = [host.name for host in hosts]
    pairs = [*pairwise(names), (names[-1], names[0])]
    changes = random_changes(pairs, CHANGES, seed=7)
    plan = LinkPlan(tuple(hosts), dict.fromkeys(pairs, SHORT))
    endpoints = {host.name: ProbeEndpoint(paths[host.name], host.address) for host in hosts}
    backend = start(plan)
    reading, writing = os.pipe()
    # One second later, so that the watcher has started by then.
    zero_ns = time.monotonic_ns() + 1_000_000_000
    # The kernel stamps packets by CLOCK_REALTIME; changes are due by CLOCK_MONOTONIC.
    to_realtime_ns = time.time_ns() - time.monotonic_ns()
    until_s = zero_ns / 1e9 + changes[-1].at_s + TAIL_S
    watcher = os.fork()
    if watcher == 0:
        seen = run_forked("watcher", lambda: watch(pairs, endpoints, spacing_ms / 1e3, until_s))
        with os.fdopen(writing, "w") as stream:
            json.dump([[[s.sent_ns, s.took_ms] for s in seen[pair]] for pair in pairs], stream)
        os._exit(0)
    os.close(writing)
    with busy_cores(os.cpu_count() or 1):
        scheduler = Scheduler(changes, backend, _NoShares(), Dilation(), {}, plan.pairs)
        scheduler.start(zero_ns)
        with os.fdopen(reading) as stream:
            told = json.load(stream)
        records = scheduler.stop()
    os.waitpid(watcher, 0)
    backend.close()
    seen = {pair: [Seen(*each) for each in rows] for pair, rows in zip(pairs, told, strict=True)}
    recorded = [1e3 * (record.effective_s - record.requested_s) for record in records]
    onsets = [
        onset_ms(
            change,
            seen[cast("Pair", change.targets[0])],
            zero_ns + round(change.at_s * 1e9) + to_realtime_ns,
            spacing_ms,
        )
        for change in changes
    ]
    lost = 1 - sum(map(len, told)) / max(
        1, len(pairs) * (until_s - zero_ns / 1e9 + 1) * 1e3 / spacing_ms
    )
    return {"recorded": recorded, "seen": onsets, "lost": lost}


class _NoShares:
    def set_share(self, host: str, share: float) -> int:
        raise EmulationError(
            f"{host}: cannot set its share to {share:g}: this benchmark changes links only"
        )


def userspace() -> dict[str, object]:
    """Measure the emulator, inside a sandbox."""
    from laggard.network_emulation.links.userspace import UserspaceBackend

    hosts = make_hosts(4)
    paths = dict(create_namespaces(hosts, "tun").paths)
    return measure(lambda plan: UserspaceBackend.start(plan, paths), hosts, paths, spacing_ms=1.0)


def netem() -> dict[str, object]:
    """Measure netem, inside a sandbox of a kernel that has it.

    That kernel is slow, so the datagrams are spaced further apart.
    """
    from laggard.layers_services.local.provider import enoslib_roles
    from laggard.network_emulation.links.netem import NetemBackend

    hosts = make_hosts(4)
    namespaces = create_namespaces(hosts, "bridge")

    def start(plan: LinkPlan) -> LinkBackend:
        roles, networks = enoslib_roles(plan.hosts)
        return NetemBackend.start(plan, roles, networks, namespaces.ports, deployment="direct")

    return measure(start, hosts, dict(namespaces.paths), spacing_ms=5.0)


IN_KERNEL = """
    sys.path.insert(0, BENCHMARKS)
    from laggard.layers_services.local.provider import use_namespace_connection
    use_namespace_connection()
    import event_onset
    result(event_onset.in_sandbox(event_onset.netem))
"""


def in_sandbox(body: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Run a function in a sandbox of its own and return its result."""
    from laggard.layers_services.local import sandbox

    read, write = os.pipe()

    def inside() -> int:
        with os.fdopen(write, "w") as stream:
            json.dump(body(), stream)
        return 0

    status = sandbox.run_in_sandbox(inside)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    if status or not text:
        raise SystemExit(f"a measurement in the sandbox failed with status {status}")
    return cast("dict[str, object]", json.loads(text))


def row(name: str, found: dict[str, object]) -> str:
    """Format one row of the table."""
    recorded = cast("list[float]", found["recorded"])
    seen = [value for value in cast("list[float | None]", found["seen"]) if value is not None]
    missed = len(cast("list[object]", found["seen"])) - len(seen)
    return f"| {name} | {_quantiles(recorded)} | {_quantiles(seen)} | {missed} of {CHANGES} |"


def _quantiles(values: Sequence[float]) -> str:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return f"{statistics.median(values):.2f}, {cuts[98]:.2f}, {max(values):.2f}"


def main() -> None:
    """Print a table."""
    print(
        "| backend | recorded: p50, p99, worst, ms | observed by datagrams: p50, p99, worst, ms |"
        " not observed |\n|---|---|---|---|",
        flush=True,
    )
    print(row("userspace, all cores busy", in_sandbox(userspace)), flush=True)
    if "--here" in sys.argv:
        return
    sys.path.insert(0, str(REPOSITORY))
    from tests.uml import kernel

    with tempfile.TemporaryDirectory() as folder:
        script = IN_KERNEL.replace("BENCHMARKS", repr(str(REPOSITORY / "benchmarks")))
        found = kernel.boot(script, Path(folder), memory="2G", limit_s=600)
    print(row("netem, user-mode kernel, its processor busy", cast("dict[str, object]", found)))


if __name__ == "__main__":
    main()
