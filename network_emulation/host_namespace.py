"""Stepping into a host's network namespace and out again (setns(2); `os.setns` exists only from
Python 3.12).

A namespace belongs to a thread: callers have one thread, and descriptors opened inside stay in that
namespace afterwards.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def entered(namespace: Path) -> Iterator[None]:
    """Run the body in the network namespace bound at `namespace`.

    Raises:
        OSError: the file is not a network namespace, or the process may not enter it.
    """
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_namespace(target, str(namespace))
        finally:
            os.close(target)
        try:
            yield
        finally:
            _set_namespace(home, "the namespace before")
    finally:
        os.close(home)


def _set_namespace(descriptor: int, name: str) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
