"""Cores that never sleep while shares are held.

A host that is held back leaves its core idle, and a core that idles for a few milliseconds goes to sleep: a laptop's writes its
inner caches back and lowers its clock, a virtual machine's is handed to somebody else and comes back elsewhere. What follows
runs slower, so that half a core gave less than half of its speed: the same training step took twice the processor time, and eight
times slower hosts took it four times. So an idle-priority process keeps every core busy: it gives way at once, touches no memory
to speak of, and leaves the hosts' caches alone (`benchmarks/cold_cores.md`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from laggard.network_emulation.forked import fork_companion

_LEAST_WEIGHT = b"19"


def keep_warm(cores: Iterable[int]) -> tuple[int, ...]:
    """Start a process per core that computes whenever nobody else does; returns their process ids, for `end_companion`."""
    return tuple(fork_companion("laggard-warmer", partial(_idle_busily, core)) for core in sorted(set(cores)))


def _idle_busily(core: int) -> int:
    os.setsid()
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # a kernel without autogroups, which then weighs this process by its policy alone
        Path("/proc/self/autogroup").write_bytes(_LEAST_WEIGHT)
    while True:
        pass
