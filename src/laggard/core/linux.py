"""Linux calls that Python 3.11 does not wrap: namespaces, mounts, prctl, timers and scheduling.

Each raises `OSError` with the kernel's error number and the target of the call as its file name.
See unshare(2), setns(2), mount(2), prctl(2), timerfd_create(2) and sched_setattr(2).
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Values of the kernel's headers: sched.h, mount.h, capability.h and prctl.h.
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAP_FOWNER = 3
CAP_FSETID = 4
CAP_KILL = 5
CAP_SETGID = 6
CAP_SETUID = 7
CAP_SETPCAP = 8
CAP_NET_BIND_SERVICE = 10
CAP_NET_ADMIN = 12
CAP_NET_RAW = 13
CAP_IPC_LOCK = 14
CAP_SYS_CHROOT = 18
CAP_SYS_PTRACE = 19
CAP_SYS_ADMIN = 21
CAP_SYS_NICE = 23
CAP_SYS_RESOURCE = 24
CAP_SETFCAP = 31

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_TIMERSLACK = 29
# Header and data of capset(2), version 3: effective, permitted and inheritable capabilities, the
# lower 32 of each first.
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)
_CAPABILITY_DATA = struct.Struct("=6I")
_TIMER_ABSOLUTE = 1
# glibc does not wrap sched_setattr(2): these are its number on each architecture, and its argument,
# a `struct sched_attr`.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_SCHED_ATTRIBUTES = struct.Struct("=IIQiIQQQ")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, target: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)
    return result


def unshare(flags: int) -> None:
    """Move the calling process into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Move the calling thread into the namespace that an open descriptor refers to."""
    _check(_libc.setns(descriptor, kind), "setns")


def enter_namespace(path: Path, kind: int) -> None:
    """Move the calling thread into the namespace bound at `path`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, kind), str(path))
    finally:
        os.close(descriptor)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` on `target`.

    `kind` is the type of the file system; it is empty for bind mounts and changes of propagation.
    """
    arguments = [text.encode() or None for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), target)


def sethostname(name: str) -> None:
    """Set the host name of the calling process's UTS namespace (at most 64 bytes)."""
    socket.sethostname(name)


def die_with_parent(parent_pid: int | None = None, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent dies.

    Args:
        parent_pid: process ID of the parent, read before the fork; if the parent is already gone,
            this process exits immediately. None if the parent is in another PID namespace, where
            its number is not visible.
        number: signal to send.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0), "prctl")
    # The parent may have died before the call, and then no signal will come.
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(128 + signal.SIGKILL)


def set_process_name(name: str) -> None:
    """Set the process name that `ps` shows; the kernel keeps 15 bytes."""
    _check(_libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0), "prctl")


def effective_capabilities() -> int:
    """Return the bit mask of the calling process's effective capabilities (capabilities(7))."""
    for line in (
        Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    ):
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def limit_capabilities(kept: frozenset[int]) -> None:
    """Drop all capabilities of the calling thread that are not in `kept`, also for later programs.

    A program that the thread executes cannot get them back, not even as root.
    """
    number = 0
    # The kernel refuses the first number that is no capability of its version.
    while (in_bounds := _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0)) >= 0:
        if in_bounds and number not in kept:
            _check(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), "prctl")
        number += 1
    mask = effective_capabilities() & sum(1 << each for each in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = _CAPABILITY_DATA.pack(low, low, 0, high, high, 0)
    _check(_libc.capset(ctypes.c_char_p(_CAPABILITY_HEADER), ctypes.c_char_p(data)), "capset")


def user_ids(pid: int) -> tuple[int, ...]:
    """Return the real, effective, saved and file-system user ids of a process (proc(5)).

    Raises:
        OSError: there is no such process
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    for line in status.splitlines():
        if line.startswith("Uid:"):
            return tuple(int(word) for word in line.split()[1:])
    return ()


def thread_names() -> tuple[str, ...]:
    """Return the names of the calling process's threads, the main one first."""
    tasks = sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name))
    return tuple(
        (task / "comm").read_text(encoding="utf-8", errors="replace").strip() for task in tasks
    )


@contextmanager
def inside_network(namespace: Path) -> Iterator[None]:
    """Run the body in the network namespace bound at `namespace`.

    A namespace belongs to a thread, so the caller must be single-threaded. Descriptors opened
    inside stay in that namespace afterwards.

    Raises:
        OSError: the file is not a network namespace, or the process may not enter it.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter_namespace(namespace, CLONE_NEWNET)
        try:
            yield
        finally:
            setns(home, CLONE_NEWNET)
    finally:
        os.close(home)


def minimize_timer_slack() -> None:
    """Make the calling thread's sleeps end on time instead of up to 50 µs late."""
    _check(_libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0), "prctl")


class MonotonicTimer:
    """One-shot timer on CLOCK_MONOTONIC with a descriptor for epoll.

    Python's `os` offers such timers from version 3.13 on.
    """

    def __init__(self) -> None:
        self.descriptor: int = _check(
            _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC),
            "timerfd_create",
        )
        # Interval, then value, each in seconds and nanoseconds.
        self._spec = (ctypes.c_long * 4)()
        self._reference = ctypes.byref(self._spec)
        self._set_to_ns = math.inf

    def set(self, when_ns: float) -> None:
        """Make the descriptor readable at `when_ns`; infinity disarms the timer.

        A time that is already set costs no system call.
        """
        if when_ns == self._set_to_ns:
            return
        self._set_to_ns = when_ns
        # The kernel takes a time of zero for "disarm", so a time in the past becomes 1 ns.
        whole = 0 if when_ns == math.inf else max(1, math.ceil(when_ns))
        self._spec[2], self._spec[3] = divmod(whole, 1_000_000_000)
        result = _libc.timerfd_settime(self.descriptor, _TIMER_ABSOLUTE, self._reference, None)
        _check(result, "timerfd_settime")

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)


def set_scheduling_slice(thread: int, slice_ns: int) -> None:
    """Give a thread a scheduling slice of its own (EEVDF).

    Linux 6.12 and later respect the slice; earlier kernels ignore it.

    Args:
        thread: thread ID; 0 is the calling thread.
        slice_ns: length of the slice in nanoseconds.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is not None:
        attributes = _SCHED_ATTRIBUTES.pack(
            _SCHED_ATTRIBUTES.size, os.SCHED_OTHER, 0, 0, 0, slice_ns, 0, 0
        )
        result = _libc.syscall(number, thread, ctypes.c_char_p(attributes), 0)
        _check(result, "sched_setattr")
