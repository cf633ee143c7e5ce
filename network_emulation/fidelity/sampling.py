"""Sampling of values for the fidelity monitor that every machine has.

These are three clocks, the time that the hypervisor took, and the computing time of hosts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from laggard.network_emulation.compute import ShareController
from laggard.network_emulation.fidelity.monitor import FidelitySample

_STAT = Path("/proc/stat")


def take_sample(cores: AbstractSet[int], shares: ShareController | None) -> FidelitySample:
    """Return the current state of this machine.

    Args:
        cores: cores that hosts compute on.
        shares: controller of the hosts' shares; None if shares are not limited.
    """
    return FidelitySample(
        at_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        awake_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        stolen_ns=_stolen_ns(cores),
        hosts={} if shares is None else shares.uses(),
        shares={} if shares is None else shares.shares,
        pulses=() if shares is None else shares.pulses(),
    )


def _stolen_ns(cores: AbstractSet[int]) -> Mapping[int, int]:
    """Return the time that the hypervisor has taken from each core, in ns.

    It is the eighth number of a core's line in /proc/stat (proc_stat(5)).
    """
    ticks_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    stolen = {}
    for line in _STAT.read_text(encoding="ascii").splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            stolen[int(name[3:])] = int(numbers[7]) * ticks_ns
    return stolen
