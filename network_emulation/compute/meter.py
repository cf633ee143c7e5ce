"""Kernel's accounts of a host's processes: CPU time, run-queue time and state.

CPU time is exact to the nanosecond, also while the process runs (clock_getcpuclockid(3)).
Run-queue time is in `schedstat` (Documentation/scheduler/sched-stats.rst), the state in `stat`
(proc_pid_stat(5)).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

_CPUCLOCK_SCHED = 2
_RUNNING = ord("R")
_REFRESH_NS = 50_000_000


class ProcessMeter:
    """Meter of one process with all its threads.

    A process that has ended reads as one that no longer computes.

    Args:
        pid: the process.
        from_birth: True to count the CPU time that the process used before this call too.
    """

    def __init__(self, pid: int, *, from_birth: bool = False) -> None:
        self.pid = pid
        self.ended = False
        self._clock = (~pid << 3) | _CPUCLOCK_SCHED
        self._threads: dict[str, tuple[int, int]] = {}
        self._refreshed_ns = 0
        self._cpu_ns = 0
        self._cpu_ns = 0 if from_birth else self._read_cpu()
        self._refresh(time.monotonic_ns())
        self._queued_ns = self._read_queued()

    def cpu_ns(self) -> int:
        """Return the CPU time of all threads since the last call."""
        now = self._read_cpu()
        used, self._cpu_ns = now - self._cpu_ns, now
        return used

    def queued_ns(self, now_ns: int) -> int:
        """Return the run-queue time of all threads in waits that ended since the last call."""
        self.look_for_threads(now_ns)
        now = self._read_queued()
        waited, self._queued_ns = now - self._queued_ns, now
        return waited

    def look_for_threads(self, now_ns: int) -> None:
        """Update the list of threads if the last update is older than `_REFRESH_NS`."""
        if now_ns - self._refreshed_ns > _REFRESH_NS:
            self._refresh(now_ns)

    def is_runnable(self) -> bool:
        """Return True if a thread computes or waits for the core.

        The thread found last time is tried first: it is usually the one that computes.
        """
        found = next(
            (name for name, (state, _) in self._threads.items() if _is_runnable(state)), None
        )
        if found is not None and found != next(iter(self._threads)):
            self._threads = {found: self._threads.pop(found), **self._threads}
        return found is not None

    def close(self) -> None:
        """Close the open files in /proc."""
        for name in list(self._threads):
            self._forget(name)

    def _read_cpu(self) -> int:
        if not self.ended:
            try:
                return time.clock_gettime_ns(self._clock)
            except OSError:  # the process has ended and its clock with it
                self.ended = True
        return self._cpu_ns

    def _read_queued(self) -> int:
        total = 0
        for _, schedstat in self._threads.values():
            if schedstat >= 0:
                with suppress(ProcessLookupError):
                    total += int(os.pread(schedstat, 64, 0).split()[1])
        return total

    def _refresh(self, now_ns: int) -> None:
        """Update the list of threads; threads that ended take their run-queue time with them."""
        self._refreshed_ns = now_ns
        folder = f"/proc/{self.pid}/task"
        try:
            names = set(os.listdir(folder))  # noqa: PTH208 - called often, on a fast path
        except (FileNotFoundError, ProcessLookupError):
            names = set()
        gone = self._threads.keys() - names
        if gone:
            for name in gone:
                self._forget(name)
            # The total has just dropped by the times of threads that ended, so the difference
            # starts anew.
            self._queued_ns = self._read_queued()
        for name in sorted(names - self._threads.keys(), key=int):
            with suppress(FileNotFoundError, ProcessLookupError):
                self._threads[name] = (
                    os.open(f"{folder}/{name}/stat", os.O_RDONLY),
                    _read_schedstat(f"{folder}/{name}"),
                )

    def _forget(self, name: str) -> None:
        for descriptor in self._threads.pop(name):
            if descriptor >= 0:
                os.close(descriptor)


def _is_runnable(state: int) -> bool:
    try:
        text = os.pread(state, 64, 0)
    except ProcessLookupError:
        return False
    return text[text.rindex(b")") + 2] == _RUNNING


def _read_schedstat(folder: str) -> int:
    try:
        return os.open(f"{folder}/schedstat", os.O_RDONLY)
    except (
        FileNotFoundError
    ):  # the kernel lacks CONFIG_SCHED_INFO: time spent waiting is then charged to the host
        return -1
