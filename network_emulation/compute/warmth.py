"""Cores that never sleep while shares are held.

A host that is held back leaves its core idle, and a core that idles for a few milliseconds goes to
sleep: a laptop's writes its inner caches back and lowers its clock, a virtual machine's is handed
to somebody else and comes back elsewhere. What follows runs slower: on half a core the same
training step took twice the processor time, on a sixteenth four times. So an idle-priority process
keeps every core busy: it gives way at once, touches no memory to speak of, and leaves the hosts'
caches alone (`benchmarks/cold_cores.md`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from laggard.network_emulation.forked import fork_companion

_AUTOGROUP = Path("/proc/self/autogroup")
_LEAST_WEIGHT = b"19"
_PATIENCE_S = 10.0
_RETRY_S = 0.13


def keep_warm(cores: Iterable[int]) -> tuple[int, ...]:
    """Start a process per core that computes whenever nobody else does; returns their process ids,
    for `end_companion`.
    """
    return tuple(
        fork_companion("laggard-warmer", partial(_idle_busily, core)) for core in sorted(set(cores))
    )


def _idle_busily(core: int) -> int:
    os.setsid()
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if not _weighs_least():
        return 0
    while True:
        pass


def _weighs_least() -> bool:
    """Have the kernel weigh this process's session least (sched(7), autogroups); its policy tells
    within the session only.

    Returns:
        False where the kernel refuses: such a process would take half of the core from a host.
    """
    until = time.monotonic() + _PATIENCE_S
    while _AUTOGROUP.exists() and time.monotonic() < until:
        try:
            _AUTOGROUP.write_bytes(_LEAST_WEIGHT)
        except BlockingIOError:  # ten writes a second are what all ordinary users together may make
            time.sleep(_RETRY_S)
        except OSError:
            return False
        else:
            return True
    return not _AUTOGROUP.exists()
