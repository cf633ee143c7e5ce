"""Keeping a timing process on time: real-time priority where permitted, the best that an ordinary user gets elsewhere.

sched(7), sched_setattr(2), prctl(2). A real-time process that would hold a core for good is stopped by the kernel for 5 % of
each second (`sched_rt_runtime_us`), so the machine stays usable.
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
_SHORT_SLICE_NS = 100_000


def become_punctual(priority: int) -> bool:
    """Give the calling process SCHED_FIFO; where that is refused, a short scheduling slice, so that it wakes sooner.

    Args:
        priority: 1 to 99; where an ordinary user's limit (`ulimit -r`) is lower but not 0, that is what it gets.

    Returns:
        Whether it has real-time priority.
    """
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    allowed, _ = resource.getrlimit(resource.RLIMIT_RTPRIO)
    if _set_realtime(priority) or (0 < allowed < priority and _set_realtime(allowed)):
        return True
    _shorten_slice()
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


def _shorten_slice() -> None:
    """Ask EEVDF (Linux 6.12 and later) for an early deadline on each wake-up; earlier kernels ignore the wish.

    It costs nothing, and what it gains is not shown: benchmarks/link_emulator.md.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, 0, 0, _SHORT_SLICE_NS, 0, 0)
    if _libc.syscall(number, 0, ctypes.c_char_p(attributes), 0) < 0:
        name = errno.errorcode.get(ctypes.get_errno(), "?")
        _log.debug("this kernel refuses a short slice (%s); wake-ups take the usual time", name)
