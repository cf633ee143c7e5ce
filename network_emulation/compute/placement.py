"""Where a host's threads run, and how soon they get the core when what they waited for arrives."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import struct
from contextlib import suppress

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_SLICE_NS = 200_000
_log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


def place(pid: int, core: int) -> None:
    """Pin every thread of a process to a core, and have it preempt what is not of the continuum when it wakes.

    EEVDF (Linux 6.12 and later; sched_setattr(2)) lets a waking task with a shorter slice preempt at once, where it would
    otherwise wait for up to a tick: longer than a phase of 1 ms takes. New threads inherit both.

    Raises:
        ProcessLookupError: no such process (or FileNotFoundError).
        PermissionError: not this user's.
    """
    for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are all that is needed
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(name), {core})
            _shorten_slice(int(name))


def _shorten_slice(thread: int) -> None:
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, 0, 0, _SLICE_NS, 0, 0)
    if _libc.syscall(number, thread, ctypes.c_char_p(attributes), 0) < 0:
        name = errno.errorcode.get(ctypes.get_errno(), "?")
        _log.debug("this kernel refuses thread %d a short slice (%s)", thread, name)
