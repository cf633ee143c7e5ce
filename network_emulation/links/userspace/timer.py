"""A one-shot timer on CLOCK_MONOTONIC with a descriptor for epoll (timerfd_create(2); `os` has it
only from Python 3.13).
"""

from __future__ import annotations

import ctypes
import math
import os
import time

_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_NS = 1_000_000_000
_libc = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """Becomes readable at the instant it is set to."""

    def __init__(self) -> None:
        self.descriptor: int = _libc.timerfd_create(
            time.CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC
        )
        if self.descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "timerfd_create")
        self._spec = _TimerSpec()
        self._reference = ctypes.byref(self._spec)
        self._set_to_ns = math.inf

    def set(self, when_ns: float) -> None:
        """Fire at `when_ns`; infinity is never. Setting it to what it is set to costs no system
        call.
        """
        if when_ns == self._set_to_ns:
            return
        self._set_to_ns = when_ns
        whole = 0 if when_ns == math.inf else max(1, math.ceil(when_ns))
        self._spec.value_s, self._spec.value_ns = divmod(whole, _NS)
        _libc.timerfd_settime(self.descriptor, _TFD_TIMER_ABSTIME, self._reference, None)
