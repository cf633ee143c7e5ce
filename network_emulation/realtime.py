"""Keeping a timing process on time: real-time priority where permitted, the best that an ordinary
user gets elsewhere.

sched(7), sched_setattr(2), prctl(2). A real-time process that would hold a core for good is stopped
by the kernel for 5 % of each second (`sched_rt_runtime_us`), so the machine stays usable.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import resource
import struct

_log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_TIMERSLACK = 29
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
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
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
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
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, 0, 0, slice_ns, 0, 0)
    if _libc.syscall(number, thread, ctypes.c_char_p(attributes), 0) >= 0:
        return
    if ctypes.get_errno() == errno.ESRCH:
        raise ProcessLookupError(errno.ESRCH, f"no thread {thread}")
    name = errno.errorcode.get(ctypes.get_errno(), "?")
    _log.debug(
        "this kernel refuses thread %d a short slice (%s); wake-ups take the usual time",
        thread,
        name,
    )
