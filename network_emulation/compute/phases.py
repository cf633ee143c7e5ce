"""Phases that a probe computes to measure a share: given CPU times, separated by idle gaps."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

MANY_ALIKE = 9
"""Number of hosts with one share from which each phase length is measured on a third of them
only."""

_LONG_MS = 1500.0
_LEAST_CPU_MS = 40.0
_SETTLED_BELOW = 0.2
_SHORT_SLICE_NS = 300_000
_LONGEST_SLICES_NS = 15_000_000
_MS = 1_000_000


@dataclass(frozen=True)
class PhaseSet:
    """Consecutive phases of one length.

    Attributes:
        cpu_ms: CPU time of each phase.
        count: number of phases.
        gap_ms: largest idle gap before each phase; gaps are uniform from 0 to this.
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
        """Return wall time divided by CPU time."""
        return self.wall_ns / self.cpu_ns

    def __add__(self, other: Timing) -> Timing:
        return Timing(self.wall_ns + other.wall_ns, self.cpu_ns + other.cpu_ns)


def plan_phases(share: float) -> tuple[PhaseSet, ...]:
    """Return phases of about 1, 10 and 100 ms that measure a share within about three seconds.

    The result is exact to a few percent. Debts are carried from phase to phase, so the time of n
    consecutive phases is exact to one slice: the number of phases decides. If a phase of 100 ms
    would take longer than 1.5 s at this share, a shorter phase replaces it.
    """
    long_ms = min(100.0, _LONG_MS * share)
    return (
        PhaseSet(1.0, _count_phases(0.75, share, 1.0, 40, 60)),
        PhaseSet(10.0, _count_phases(0.6, share, 10.0, 3, 12)),
        PhaseSet(long_ms, _count_phases(0.8, share, long_ms, 1, 3)),
    )


def plan_probes(shares: Mapping[str, float]) -> dict[str, tuple[PhaseSet, ...]]:
    """Return the phases that every host computes.

    If many hosts have the same share, they divide the work: each takes one length in turn, for
    longer.
    """
    alike: dict[float, list[str]] = {}
    for host, share in shares.items():
        alike.setdefault(share, []).append(host)
    plans = {host: plan_phases(share) for host, share in shares.items()}
    for share, hosts in alike.items():
        for number, host in enumerate(hosts if len(hosts) >= MANY_ALIKE else ()):
            plans[host] = _select_phase(number % len(plans[host]), plans[host], share)
    return plans


def _select_phase(chosen: int, plan: tuple[PhaseSet, ...], share: float) -> tuple[PhaseSet, ...]:
    return tuple(
        lengthen_phases(each, share, 1) if i == chosen else replace(each, count=0)
        for i, each in enumerate(plan)
    )


def lengthen_phases(phases: PhaseSet, share: float, times: int) -> PhaseSet:
    """Return enough phases to take `times` times 1.5 seconds.

    Small shares get at least as many phases as the measurement needs slices.
    """
    each_ms = phases.cpu_ms / share + phases.gap_ms / 2
    count = max(_LONG_MS / each_ms, _LEAST_CPU_MS / phases.cpu_ms)
    return replace(phases, count=max(times, round(times * count)))


def expected_s(plan: Iterable[PhaseSet], share: float) -> float:
    """Return the wall seconds that sets of phases take at a share, gaps included."""
    return sum(each.count * (each.cpu_ms / share + each.gap_ms / 2) for each in plan) / 1000


def _count_phases(budget_s: float, share: float, cpu_ms: float, least: int, most: int) -> int:
    return max(least, min(most, round(budget_s * share * 1000 / cpu_ms)))


def run_phases(phases: PhaseSet, chance: random.Random, share: float = 1.0) -> Timing:
    """Compute a set of phases in this thread, and time it between two moments without debt.

    The debt of the last slice would be paid in the next phase, if there were one. At a small share
    a series has so few slices that this one matters. So the thread computes until it has been held
    back, both before the series and at its end.

    A phase begins when its gap ends, not when the thread first gets the core: likewise, a worker's
    phase begins when the data it waits for arrive. CPU time spent entering a gap counts for the
    next phase, and so does being held back there. Only idling is excluded.
    """
    if not phases.count:
        return Timing(0, 0)
    _until_held_back(share)
    began_ns, cpu_began_ns, idle_ns = time.monotonic_ns(), time.thread_time_ns(), 0
    for _ in range(phases.count):
        gap_ns = round(chance.random() * phases.gap_ms * _MS)
        done_ns = time.thread_time_ns() + round(phases.cpu_ms * _MS)
        # The end of the sleep is fixed when it is called, so a late start shortens the idling.
        time.sleep(gap_ns / 1e9)
        idle_ns += gap_ns
        while time.thread_time_ns() < done_ns:
            pass
    _until_held_back(share)
    return Timing(time.monotonic_ns() - began_ns - idle_ns, time.thread_time_ns() - cpu_began_ns)


def _until_held_back(share: float) -> None:
    """Compute until the thread was held back for about as long as one slice costs.

    It gives up after the CPU time of the longest possible slices.
    """
    if share > _SETTLED_BELOW:
        return
    held_ns = _SHORT_SLICE_NS * (1 / share - 1)
    done_ns = time.thread_time_ns() + _LONGEST_SLICES_NS
    before_ns = time.monotonic_ns()
    while time.thread_time_ns() < done_ns:
        now_ns = time.monotonic_ns()
        if now_ns - before_ns >= held_ns:
            return
        before_ns = now_ns
