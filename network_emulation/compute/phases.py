"""What a probe computes to measure a share: real phases of given CPU time, separated by idle
gaps.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

MANY_ALIKE = 9
"""From so many hosts of one share on, each length of phase is measured on a third of them."""

_LONG_MS = 1500.0
_LEAST_CPU_MS = 40.0
_SETTLED_BELOW = 0.2
_SHORT_SLICE_NS = 300_000
_LONGEST_SLICES_NS = 15_000_000
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
    """Phases of about 1, 10 and 100 ms that tell a share to a few per cent within about three
    seconds.

    Debts are carried from phase to phase, so the time of n phases in a row is certain to one slice:
    their number decides. A share so small that a phase of 100 ms would take longer than a second
    and a half gets a shorter one.
    """
    long_ms = min(100.0, _LONG_MS * share)
    return (
        PhaseSet(1.0, _count_phases(0.75, share, 1.0, 40, 60)),
        PhaseSet(10.0, _count_phases(0.6, share, 10.0, 3, 12)),
        PhaseSet(long_ms, _count_phases(0.8, share, long_ms, 1, 3)),
    )


def plan_probes(shares: Mapping[str, float]) -> dict[str, tuple[PhaseSet, ...]]:
    """What every host is to compute. Many that are alike share the work: each takes one length in
    turn, for longer.
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
    """As many phases as take a second and a half, or `times` as long; of small shares as many as
    are enough slices to tell.
    """
    each_ms = phases.cpu_ms / share + phases.gap_ms / 2
    count = max(_LONG_MS / each_ms, _LEAST_CPU_MS / phases.cpu_ms)
    return replace(phases, count=max(times, round(times * count)))


def expected_s(plan: Iterable[PhaseSet], share: float) -> float:
    """Wall seconds that sets of phases take at a share, gaps included."""
    return sum(each.count * (each.cpu_ms / share + each.gap_ms / 2) for each in plan) / 1000


def _count_phases(budget_s: float, share: float, cpu_ms: float, least: int, most: int) -> int:
    return max(least, min(most, round(budget_s * share * 1000 / cpu_ms)))


def run_phases(phases: PhaseSet, chance: random.Random, share: float = 1.0) -> Timing:
    """Compute a set of phases in this thread, and time them, from one moment at which nothing is
    owed to another.

    What is owed for the last slice would be held back from the next phase, were there one. Of a
    small share a series has so few slices that this one matters, so the thread computes on until it
    has been held back, before the series and at its end.

    A phase begins when its gap ends, as a worker's does when what it waited for arrives, not when
    the core is first had. What is computed on the way into a gap counts to the phase behind it, and
    so does being held back there: only idling is left out.
    """
    if not phases.count:
        return Timing(0, 0)
    _until_held_back(share)
    began_ns, cpu_began_ns, idle_ns = time.monotonic_ns(), time.thread_time_ns(), 0
    for _ in range(phases.count):
        gap_ns = round(chance.random() * phases.gap_ms * _MS)
        done_ns = time.thread_time_ns() + round(phases.cpu_ms * _MS)
        time.sleep(
            gap_ns / 1e9
        )  # until a moment that is fixed at the call: coming late shortens the idling by as much
        idle_ns += gap_ns
        while time.thread_time_ns() < done_ns:
            pass
    _until_held_back(share)
    return Timing(time.monotonic_ns() - began_ns - idle_ns, time.thread_time_ns() - cpu_began_ns)


def _until_held_back(share: float) -> None:
    """Compute until the thread was kept from it for about as long as a slice costs, or could not
    have been for so long.
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
