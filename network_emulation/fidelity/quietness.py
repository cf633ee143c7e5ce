"""Quietness of a machine: the part of its cores that a program gets, and its punctuality.

A measured share, rate or delay is meaningful only if no other program uses the cores. This
reference needs no emulation, so it is measured in pairs with each check.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from laggard.network_emulation.forked import fork_companion

LEAST_CORE_SHARE = 0.95
"""Share of a core that a busy program gets on a quiet machine. A second program of the same
priority leaves half; interrupts and kernel threads take a percent or two."""

MOST_LATENESS_MS = 5.0
"""Lateness that one timer in a hundred may exceed on a quiet machine."""

_SPIN_S = 0.4
_SLEEPS = 200
_SLEEP_S = 0.001
_RECORD_BYTES = 64


@dataclass(frozen=True)
class CoreQuietness:
    """Reference measurement of one core.

    Attributes:
        core: number of the core.
        share: part of the time that a busy program had the core.
        lateness_ms: 99th percentile of the lateness of timers of a millisecond.
    """

    core: int
    share: float
    lateness_ms: float

    @property
    def is_quiet(self) -> bool:
        """Return True if no other program used the core noticeably."""
        return self.share >= LEAST_CORE_SHARE and self.lateness_ms <= MOST_LATENESS_MS

    def describe(self) -> str:
        """Return the measured values as text."""
        return (
            f"core {self.core}: a busy program gets {100 * self.share:.0f} %, timers are up to"
            f" {self.lateness_ms:.1f} ms late"
        )


def measure_quietness(cores: Iterable[int]) -> tuple[CoreQuietness, ...]:
    """Measure all cores at the same time, for about a second.

    Args:
        cores: numbers of the cores; the calling process may use each.
    """
    probes = [_start_probe(core) for core in cores]
    return tuple(_read_result(core, pipe, pid) for core, pipe, pid in probes)


def _start_probe(core: int) -> tuple[int, int, int]:
    reader, writer = os.pipe()

    def probe() -> int:
        os.sched_setaffinity(0, {core})
        result = f"{_measure_share()} {_measure_lateness_ms()}"
        os.write(writer, result.encode().ljust(_RECORD_BYTES))
        return 0

    pid = fork_companion("laggard-quiet", probe)
    os.close(writer)
    return core, reader, pid


def _read_result(core: int, pipe: int, pid: int) -> CoreQuietness:
    with os.fdopen(pipe, "rb") as stream:
        words = stream.read().split()
    os.waitpid(pid, 0)
    share, lateness_ms = (float(word) for word in words) if words else (0.0, float("inf"))
    return CoreQuietness(core, share, lateness_ms)


def _measure_share() -> float:
    """Return the CPU time over the wall time of a busy loop."""
    wall_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
    end_ns = wall_ns + round(_SPIN_S * 1e9)
    while (now_ns := time.monotonic_ns()) < end_ns:
        pass
    return (time.process_time_ns() - cpu_ns) / (now_ns - wall_ns)


def _measure_lateness_ms() -> float:
    """Return the 99th percentile of the lateness of short sleeps, in milliseconds."""
    late = sorted(_sleep_once() for _ in range(_SLEEPS))
    return _percentile(late, 0.99) * 1000


def _sleep_once() -> float:
    start = time.monotonic()
    time.sleep(_SLEEP_S)
    return time.monotonic() - start - _SLEEP_S


def _percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
