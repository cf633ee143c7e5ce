"""Keeping a timing process on time: real-time priority where permitted, the best that an ordinary
user gets elsewhere.

sched(7), sched_setattr(2), prctl(2). A real-time process that would hold a core for good is stopped
by the kernel for 5 % of each second (`sched_rt_runtime_us`), so the machine stays usable.
"""

from __future__ import annotations

import errno
import logging
import os
import resource

from laggard.core import linux

_log = logging.getLogger(__name__)

_SHORT_SLICE_NS = 100_000


def become_punctual(priority: int) -> bool:
    """Give the calling process SCHED_FIFO; where that is refused, a short scheduling slice, so that
    it wakes sooner.

    Args:
        priority: 1 to 99; where an ordinary user's limit (`ulimit -r`) is lower but not 0, that is
            what it gets.

    Returns:
        Whether it has real-time priority.
    """
    linux.minimize_timer_slack()
    allowed, _ = resource.getrlimit(resource.RLIMIT_RTPRIO)
    if _set_realtime(priority) or (0 < allowed < priority and _set_realtime(allowed)):
        return True
    shorten_slice(0, _SHORT_SLICE_NS)  # what it gains is not shown: benchmarks/link_emulator.md
    return False


def become_ordinary() -> None:
    """Give up what `become_punctual` or a parent gave: normal priority and slice."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _set_realtime(priority: int) -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except PermissionError:
        return False
    return True


def shorten_slice(thread: int, slice_ns: int) -> None:
    """Ask EEVDF (Linux 6.12 and later) for an early deadline on each wake-up; earlier kernels
    ignore the wish.

    Args:
        thread: its id; 0 is the calling one.
        slice_ns: the slice to plan with, shorter than others'.

    Raises:
        ProcessLookupError: the thread is gone.
    """
    try:
        linux.set_scheduling_slice(thread, slice_ns)
    except ProcessLookupError:
        raise
    except OSError as error:
        _log.debug(
            "this kernel refuses thread %d a short slice (%s); wake-ups take the usual time",
            thread,
            errno.errorcode.get(error.errno or 0, "?"),
        )
