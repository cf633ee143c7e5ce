"""Warm cores: idle-priority processes keep them awake while shares are held.

A held-back host leaves its core idle, and a core that idles for a few milliseconds goes to sleep.
A laptop's core writes its inner caches back and lowers its clock; a virtual machine's core is
given to another guest and resumes elsewhere. The next computation is slower: on half a core the
same training step took twice the processor time, on a sixteenth four times. So an idle-priority
process keeps every core busy. It yields at once, uses almost no memory, and leaves the hosts'
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
"""Nice value of the autogroup; 19 is the lowest weight."""
_PATIENCE_S = 10.0
_RETRY_S = 0.13


def keep_warm(cores: Iterable[int]) -> tuple[int, ...]:
    """Start a process per core that computes whenever no other process does.

    Returns:
        Process ids, to be passed to `end_companion`.
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
    """Give this process's session the lowest scheduling weight (sched(7), autogroups).

    The idle policy alone counts only within the session.

    Returns:
        False if the kernel refuses: such a process would take half of the core from a host.
    """
    until = time.monotonic() + _PATIENCE_S
    while _AUTOGROUP.exists() and time.monotonic() < until:
        try:
            _AUTOGROUP.write_bytes(_LEAST_WEIGHT)
        except BlockingIOError:  # all ordinary users together may write ten times a second
            time.sleep(_RETRY_S)
        except OSError:
            return False
        else:
            return True
    return not _AUTOGROUP.exists()
