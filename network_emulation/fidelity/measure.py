"""Measurement of emulated links between the hosts' namespaces: round trips, rates and losses.

Every measurement runs in a short-lived process of its own, with real-time priority if permitted
(below the emulator's). Results are in real, not virtual, units.
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
"""Real-time priority of the probes: below the emulator's, above everything else."""


def measure_rtt(
    probes: Sequence[EchoProbe], hosts: Mapping[str, ProbeEndpoint], *, busy: bool = True
) -> dict[Pair, float | None]:
    """Measure the median round-trip time of an empty packet for all pairs at once.

    Args:
        probes: pairs to measure.
        hosts: the hosts by name.
        busy: True to keep every core busy at normal priority, as training will.

    Returns:
        Real ms by pair; None if nothing came back.

    Raises:
        EmulationError: if the probes could not run.
    """
    if not probes:
        return {}
    with busy_cores(len(os.sched_getaffinity(0)) if busy else 0):
        return _run_punctually(lambda: measure_echoes(probes, hosts))


def measure_rate(
    probes: Sequence[RateProbe], hosts: Mapping[str, ProbeEndpoint]
) -> dict[Pair, float]:
    """Measure rates in Mbit/s of bytes on the wire; all flows run at once.

    The probes must not share a link.

    Raises:
        EmulationError: if the probes could not run.
    """
    return _run_punctually(lambda: measure_streams(probes, hosts)) if probes else {}


def measure_loss(
    probes: Sequence[LossProbe], hosts: Mapping[str, ProbeEndpoint]
) -> dict[Pair, LossCount]:
    """Count packets sent and lost, for all pairs at once.

    Raises:
        EmulationError: if the probes could not run.
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
    # The burner must not keep a real-time priority of its parent.
    become_ordinary()
    while True:
        pass


def _run_punctually(function: Callable[[], _T]) -> _T:
    def run() -> _T:
        become_punctual(PRIORITY)
        return function()

    return run_forked("laggard-probe", run)
