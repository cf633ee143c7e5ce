"""Punctuality of timing processes: real-time priority if permitted, else a short slice.

References: sched(7), sched_setattr(2), prctl(2). The kernel stops a real-time process that would
occupy a core permanently for 5 % of each second (`sched_rt_runtime_us`), so the machine stays
usable.
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
    """Give the calling process SCHED_FIFO, or a short scheduling slice if that is refused.

    A short slice makes it wake up sooner.

    Args:
        priority: 1 to 99. If an ordinary user's limit (`ulimit -r`) is lower but not 0, the
            process gets that limit.

    Returns:
        True if the process has real-time priority.
    """
    linux.minimize_timer_slack()
    allowed, _ = resource.getrlimit(resource.RLIMIT_RTPRIO)
    if _set_realtime(priority) or (0 < allowed < priority and _set_realtime(allowed)):
        return True
    shorten_slice(0, _SHORT_SLICE_NS)  # its benefit is unproven: benchmarks/link_emulator.md
    return False


def become_ordinary() -> None:
    """Reset the priority and slice set by `become_punctual` or by a parent."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _set_realtime(priority: int) -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except PermissionError:
        return False
    return True


def shorten_slice(thread: int, slice_ns: int) -> None:
    """Ask EEVDF (Linux 6.12 and later) for an early deadline on each wake-up.

    Earlier kernels ignore the request.

    Args:
        thread: id of the thread; 0 is the calling one.
        slice_ns: slice to plan with, shorter than that of other tasks.

    Raises:
        ProcessLookupError: if the thread has ended.
    """
    try:
        linux.set_scheduling_slice(thread, slice_ns)
    except ProcessLookupError:
        raise
    except OSError as error:
        _log.debug(
            "the kernel refused a short scheduling slice for thread %d (%s)",
            thread,
            errno.errorcode.get(error.errno or 0, "?"),
        )
