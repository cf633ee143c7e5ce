"""Exactness of CPU shares for short phases, under both limiters and a plain quota.

    python benchmarks/cpu_shares.py > benchmarks/cpu_shares.md        (as root, on two cores or more; three minutes)

Eight hosts compute phases of 1, 10 and 100 ms at once, with random gaps. The tables show wall time
divided by CPU time, relative to the share. `plain quota` is a cgroup quota with a period of 1 ms /
share and nothing else, for comparison.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from laggard.network_emulation.compute import prepare_cgroups
from laggard.network_emulation.compute.controller import open_shares
from laggard.network_emulation.compute.cpu_plan import plan_cpus, usable_cores
from laggard.network_emulation.compute.phases import PhaseSet, run_phases
from laggard.network_emulation.forked import end_companion, fork_companion

SHARES = {"a": 0.5, "b": 0.25, "c": 0.25, "d": 0.1, "e": 0.1, "f": 0.1, "g": 0.05, "h": 0.05}
LENGTHS_MS = (1, 1, 1, 1, 10, 10, 100)
GAP_MS = 20.0
_PR_SET_DUMPABLE = 4
Attach = Callable[[str, int], object]


@dataclass
class Result:
    """Measurements of one limiter.

    Attributes:
        name: title of the table.
        ratios: wall and CPU time in ns of every phase, by share and length of the phase in ms.
        limiter_cores: part of a core that the limiter itself used.
    """

    name: str
    ratios: dict[tuple[float, int], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    limiter_cores: float = 0.0


def probe(name: str, seconds: float, start_fd: int, result_fd: int) -> int:
    """Compute phases in random order for some seconds, then write their durations."""
    os.setsid()
    os.read(start_fd, 1)  # all probes begin when the parent writes one byte for each
    chance = random.Random(name)
    taken: list[tuple[int, int, int]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for length in chance.sample(LENGTHS_MS, len(LENGTHS_MS)):
            timing = run_phases(PhaseSet(length, 1, GAP_MS), chance)
            taken.append((length, timing.wall_ns, timing.cpu_ns))
            if time.monotonic() >= end:
                break
    with os.fdopen(result_fd, "wb") as stream:
        pickle.dump(taken, stream)
    return 0


def measure(result: Result, seconds: float, attach: Attach, cost_s: Callable[[], float]) -> Result:
    """Run a probe on every host at once."""
    start_read, start_write = os.pipe()
    probes: dict[str, tuple[int, int]] = {}
    for host in SHARES:
        reading, writing = os.pipe()
        pid = fork_companion(
            "laggard-probe", lambda h=host, w=writing: probe(h, seconds, start_read, w)
        )  # type: ignore[misc]
        os.close(writing)
        attach(host, pid)
        probes[host] = (pid, reading)
    began, cost = time.monotonic(), cost_s()
    os.write(start_write, b"." * len(probes))
    for host, (pid, reading) in probes.items():
        with os.fdopen(reading, "rb") as stream:
            for length, wall_ns, cpu_ns in pickle.load(stream):  # noqa: S301 - our own fork's
                result.ratios[SHARES[host], length].append((wall_ns, cpu_ns))
        # Once is enough: all probes run for the same time, so the first end is the end of all.
        if host == "a":
            result.limiter_cores = (cost_s() - cost) / (time.monotonic() - began)
        end_companion(pid)
    os.close(start_read)
    os.close(start_write)
    return result


@contextmanager
def plain_quota(cpus: Mapping[str, int]) -> Iterator[Attach]:
    """Create cgroups whose quota the kernel refills, without a limiter."""
    cgroups = prepare_cgroups(SHARES, run_name())
    if cgroups is None:
        sys.exit("cannot create cgroups: missing permission — run this benchmark as root")
    for host, share in SHARES.items():
        folder = cgroups.path / host
        if (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text(f"1000 {1000 / share:.0f}")
        else:  # cgroup v1
            (folder / "cpu.cfs_period_us").write_text(f"{1000 / share:.0f}")
            (folder / "cpu.cfs_quota_us").write_text("1000")

    def attach(host: str, pid: int) -> None:
        os.sched_setaffinity(pid, {cpus[host]})
        cgroups.hosts[host].admit(pid)

    yield attach
    cgroups.close()
    cgroups.remove()


def run_name() -> str:
    """Return `<pid>-<start time>` of this process, which names its cgroups."""
    stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    return f"{os.getpid()}-{stat[stat.rindex(')') + 2 :].split()[19]}"


def become_nobody() -> None:
    """Give up all rights, to measure as an ordinary user."""
    # The user comes last, since it loses the right to change the groups.
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(
        _PR_SET_DUMPABLE, 1, 0, 0, 0
    )  # after setuid, /proc entries belong to root until this is set or a program is executed


def report(result: Result, load: str) -> None:
    """Print one table."""
    print(
        f"\n## {result.name}\n\nLimiter: {result.limiter_cores * 100:.1f} % of a core. Load"
        f" average: {load}.\n"
    )
    print("| share | phase | n | mean of wall x share / CPU | median | spread (sd) | 5 % – 95 % |")
    print("|---|---|---|---|---|---|---|")
    for (share, length), taken in sorted(result.ratios.items()):
        ratios = sorted(wall / cpu * share for wall, cpu in taken)
        mean = sum(wall for wall, _ in taken) / sum(cpu for _, cpu in taken) * share
        low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
        spread = statistics.pstdev(ratios)
        print(
            f"| {share:.0%} | {length} ms | {len(ratios)} | **{mean:.3f}** |"
            f" {statistics.median(ratios):.3f} | {spread:.3f} | {low:.2f} – {high:.2f} |"
        )


def main(seconds: float) -> None:
    """Print the three tables."""
    cpus = plan_cpus(SHARES, usable_cores()[:2], 0.5).cpus
    print(
        "# CPU shares: eight hosts at once on two cores, phases of 1, 10 and 100 ms, gaps of 0 to"
        " 20 ms\n"
    )
    print(
        f"Linux {os.uname().release}; generated by `{' '.join(['python', *sys.argv])}`.\n\n"
        "A phase that needs c seconds of CPU time should take c / share seconds of wall time. The"
        " tables\ngive measured over expected time: 1.000 is exact, less is too fast. The column"
        " `n` is the number\nof phases."
    )
    cgroups = prepare_cgroups(SHARES, run_name())
    if cgroups is None:
        sys.exit("cannot create cgroups: missing permission — run this benchmark as root")
    with open_shares(SHARES, cgroups, cpus) as held:
        report(measure(Result("cgroup-quota (root)"), seconds, held.attach, held.cpu_s), load())
    cgroups.close()
    cgroups.remove()
    with plain_quota(cpus) as attach:
        report(measure(Result("plain quota, for comparison"), seconds, attach, lambda: 0.0), load())
    # The last measurement, because rights cannot be regained.
    become_nobody()
    with open_shares(SHARES, None, cpus) as held:
        report(
            measure(Result("stop-signal (ordinary user)"), seconds, held.attach, held.cpu_s), load()
        )


def load() -> str:
    """Return the load average of the last minute, which helps to judge the spread."""
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
