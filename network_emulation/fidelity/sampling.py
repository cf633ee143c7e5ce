"""Takes what any machine can tell the guard: three clocks, what its hypervisor took, how its hosts
computed.
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
    """The state of this machine now.

    Args:
        cores: that hosts compute on.
        shares: what holds the hosts to their shares; None where nothing does.
    """
    return FidelitySample(
        at_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        awake_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        stolen_ns=_stolen_ns(cores),
        hosts={} if shares is None else shares.uses(),
        shares={} if shares is None else shares.shares,
    )


def _stolen_ns(cores: AbstractSet[int]) -> Mapping[int, int]:
    """What the hypervisor has taken of each core so far (proc_stat(5): the eighth number)."""
    ticks_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    stolen = {}
    for line in _STAT.read_text(encoding="ascii").splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            stolen[int(name[3:])] = int(numbers[7]) * ticks_ns
    return stolen
