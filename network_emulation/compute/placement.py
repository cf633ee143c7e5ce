"""Where a host's threads run, and how soon they get the core when what they waited for arrives."""

from __future__ import annotations

import os
from contextlib import suppress

from laggard.network_emulation.realtime import shorten_slice

_SLICE_NS = 200_000


def place(pid: int, core: int) -> None:
    """Pin every thread of a process to a core, and have it preempt what is not of the continuum
    when it wakes.

    EEVDF (Linux 6.12 and later; sched_setattr(2)) lets a waking task with a shorter slice preempt
    at once, where it would otherwise wait for up to a tick: longer than a phase of 1 ms takes. New
    threads inherit both.

    Raises:
        ProcessLookupError: no such process (or FileNotFoundError).
        PermissionError: not this user's.
    """
    for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are all that is needed
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(name), {core})
            shorten_slice(int(name), _SLICE_NS)
