"""What a probe computes to measure a share: real phases of given CPU time, separated by idle gaps."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

_MS = 1_000_000


@dataclass(frozen=True)
class PhaseSet:
    """Phases of one length in a row.

    Attributes:
        cpu_ms: CPU time of each.
        count: how many.
        gap_ms: each is preceded by an idle gap, uniform from 0 to this.
    """

    cpu_ms: float
    count: int
    gap_ms: float = 10.0


@dataclass(frozen=True)
class Timing:
    """Wall and CPU time of a set of phases."""

    wall_ns: int
    cpu_ns: int

    @property
    def slowdown(self) -> float:
        """Wall over CPU time."""
        return self.wall_ns / self.cpu_ns

    def __add__(self, other: Timing) -> Timing:
        return Timing(self.wall_ns + other.wall_ns, self.cpu_ns + other.cpu_ns)


def plan_phases(share: float) -> tuple[PhaseSet, ...]:
    """Phases of about 1, 10 and 100 ms that tell a share to a few per cent within about three seconds.

    Debts are carried from phase to phase, so the time of n phases in a row is certain to one slice: their number decides. A
    share so small that a phase of 100 ms would take longer than two seconds gets a shorter one.
    """
    long_ms = min(100.0, 2000.0 * share)
    return (
        PhaseSet(1.0, _count(0.75, share, 1.0, 40, 60)),
        PhaseSet(10.0, _count(0.6, share, 10.0, 3, 12)),
        PhaseSet(long_ms, _count(0.8, share, long_ms, 1, 3)),
    )


def _count(budget_s: float, share: float, cpu_ms: float, least: int, most: int) -> int:
    return max(least, min(most, round(budget_s * share * 1000 / cpu_ms)))


def run_phases(phases: PhaseSet, chance: random.Random) -> Timing:
    """Compute a set of phases in this thread, and time them.

    A phase begins when its gap ends, as a worker's does when what it waited for arrives, not when the core is first had.
    """
    total = Timing(0, 0)
    for _ in range(phases.count):
        total += _run_phase(round(phases.cpu_ms * _MS), round(chance.random() * phases.gap_ms * _MS))
    return total


def _run_phase(cpu_ns: int, gap_ns: int) -> Timing:
    cpu_began_ns, began_ns = time.thread_time_ns(), time.monotonic_ns() + gap_ns
    time.sleep(gap_ns / 1e9)
    while True:
        used_ns = time.thread_time_ns() - cpu_began_ns
        if used_ns >= cpu_ns:
            return Timing(time.monotonic_ns() - began_ns, used_ns)
