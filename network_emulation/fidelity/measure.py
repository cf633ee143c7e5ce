"""What the emulated links really do: round-trip times, rates and losses, measured between the
hosts' own namespaces.

Every measurement runs in a short-lived process of its own with real-time priority where that is
permitted (below the emulator's), and returns real, not virtual, units.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from laggard.network_emulation.fidelity.probes.datagrams import (
    LossCount,
    LossProbe,
    measure_datagrams,
)
from laggard.network_emulation.fidelity.probes.echo import EchoProbe, measure_echoes
from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint
from laggard.network_emulation.fidelity.probes.stream import RateProbe, measure_streams
from laggard.network_emulation.forked import end_companion, fork_companion, run_forked
from laggard.network_emulation.link_plan import Pair
from laggard.network_emulation.realtime import become_ordinary, become_punctual

__all__ = [
    "EchoProbe",
    "LossCount",
    "LossProbe",
    "ProbeEndpoint",
    "RateProbe",
    "busy_cores",
    "measure_loss",
    "measure_rate",
    "measure_rtt",
]

_T = TypeVar("_T")

PRIORITY = 40
"""Real-time priority of the probes: below the emulator's, above all else."""


def measure_rtt(
    probes: Sequence[EchoProbe], hosts: Mapping[str, ProbeEndpoint], *, busy: bool = True
) -> dict[Pair, float | None]:
    """Median round-trip times in ms of an empty packet, all pairs at once; None where nothing came
    back.

    Args:
        probes: what to measure.
        hosts: the hosts by name.
        busy: keep every core busy at normal priority meanwhile, as training will.

    Raises:
        EmulationError: the probes could not run.
    """
    if not probes:
        return {}
    with busy_cores(len(os.sched_getaffinity(0)) if busy else 0):
        return _run_punctually(lambda: measure_echoes(probes, hosts))


def measure_rate(
    probes: Sequence[RateProbe], hosts: Mapping[str, ProbeEndpoint]
) -> dict[Pair, float]:
    """Rates in Mbit/s of bytes on the wire, by flows that all run at once: they must not share a
    link.

    Raises:
        EmulationError: the probes could not run.
    """
    return _run_punctually(lambda: measure_streams(probes, hosts)) if probes else {}


def measure_loss(
    probes: Sequence[LossProbe], hosts: Mapping[str, ProbeEndpoint]
) -> dict[Pair, LossCount]:
    """Packets sent and lost, all pairs at once.

    Raises:
        EmulationError: the probes could not run.
    """
    return _run_punctually(lambda: measure_datagrams(probes, hosts)) if probes else {}


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy at normal priority during the body."""
    burners = [fork_companion("laggard-burner", _keep_core_busy) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            end_companion(burner)


def _keep_core_busy() -> int:
    become_ordinary()
    while True:
        pass


def _run_punctually(function: Callable[[], _T]) -> _T:
    def run() -> _T:
        become_punctual(PRIORITY)
        return function()

    return run_forked("laggard-probe", run)
