"""Watch over the memory of workers on limited hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.5
"""Real seconds between two reads. A worker that exceeds its limit for a shorter time is
reported after the run, and does not end it."""

_COUNTED = ("RssAnon:", "RssShmem:", "VmSwap:")
_MAPPED = "RssFile:"
_HIGHEST = "VmHWM:"
_FORGET_HIGHEST = b"5"
"""Value for clear_refs that resets the high-water mark (proc_pid_clear_refs(5))."""


@dataclass(frozen=True)
class Overrun:
    """Host whose workers hold more memory than it has.

    Attributes:
        host: name of the host.
        limit_bytes: memory of the host.
        held_bytes: memory that its workers hold together.
        pid: its biggest worker.
        processes: number of its workers.
    """

    host: str
    limit_bytes: int
    held_bytes: int
    pid: int
    processes: int

    def __str__(self) -> str:
        held, limit = self.held_bytes / 2**20, self.limit_bytes / 2**20
        who = f"{self.processes} workers hold" if self.processes > 1 else "holds"
        several = " lower placement.per_host," if self.processes > 1 else ""
        return (
            f"{who} {held:.0f} MiB, but {self.host} has only {limit:.0f} MiB of memory — raise"
            f" `memory` in heterogeneity.yaml,{several} lower batch_size or use a smaller model"
        )


@dataclass
class MemoryWatch:
    """Watch over the hosts of one run.

    Attributes:
        limits: bytes of memory of each limited host.
        peaks: peak memory of each host's workers, also between two reads; for several workers, the
            sum of their peaks.
        clock: clock in seconds that times the reads.
    """

    limits: Mapping[str, int]
    peaks: dict[str, int] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _mapped: dict[int, int] = field(default_factory=dict)
    _looked_s: float = -LOOK_S

    def look(self, processes: Iterable[tuple[str, int]]) -> Overrun | None:
        """Read the workers' memory if a read is due; return the first host that exceeds its limit.

        Args:
            processes: host and process id of every worker.
        """
        now_s = self.clock()
        if not self.limits or now_s - self._looked_s < LOOK_S:
            return None
        self._looked_s = now_s
        held: dict[str, dict[int, int]] = {}
        peaks: dict[str, int] = {}
        for host, pid in processes:
            if host in self.limits:
                status = _read_memory_status(pid)
                held.setdefault(host, {})[pid] = now_bytes = _count_held_bytes(status)
                peaks[host] = peaks.get(host, 0) + max(now_bytes, self._peak_since(pid, status))
        for host, peak_bytes in peaks.items():
            self.peaks[host] = max(peak_bytes, self.peaks.get(host, 0))
        overruns = [
            overrun
            for host, each in held.items()
            if (overrun := self._enter(host, each)) is not None
        ]
        return overruns[0] if overruns else None

    def _peak_since(self, pid: int, status: Mapping[str, int]) -> int:
        """Return an upper bound of the memory that a process held since the last read.

        The kernel's mark counts mapped files too. Files that were mapped at the last read or are
        mapped now were mapped at the peak, so they are subtracted. Each read resets the mark
        (proc_pid_clear_refs(5)).
        """
        mapped = status.get(_MAPPED, 0)
        before, self._mapped[pid] = self._mapped.get(pid, 0), mapped
        with suppress(OSError):  # the process has ended, or the kernel cannot reset the mark
            Path(f"/proc/{pid}/clear_refs").write_bytes(_FORGET_HIGHEST)
        return status.get(_HIGHEST, 0) - max(mapped, before)

    def _enter(self, host: str, held: Mapping[int, int]) -> Overrun | None:
        total, limit = sum(held.values()), self.limits[host]
        return (
            Overrun(host, limit, total, max(held, key=lambda pid: held[pid]), len(held))
            if total > limit
            else None
        )


def short_overruns(limits: Mapping[str, int], peaks: Mapping[str, int]) -> tuple[str, ...]:
    """Return a warning for each host whose workers exceeded its memory between two reads.

    Args:
        limits: bytes of memory of each limited host.
        peaks: peak memory of each host's workers.
    """
    return tuple(
        f"{host}: its workers held up to {peaks[host] / 2**20:.0f} MiB for less than {LOOK_S:g} s,"
        f" but it has only {limit / 2**20:.0f} MiB of memory; a real device would have killed them"
        " — raise `memory` in heterogeneity.yaml, or lower batch_size"
        for host, limit in limits.items()
        if peaks.get(host, 0) > limit
    )


def held_bytes(pid: int) -> int:
    """Return the memory of a process that the kernel cannot take back; 0 if it has ended."""
    return _count_held_bytes(_read_memory_status(pid))


def _count_held_bytes(status: Mapping[str, int]) -> int:
    return sum(status.get(name, 0) for name in _COUNTED)


def _read_memory_status(pid: int) -> dict[str, int]:
    """Return the byte counts of proc_pid_status(5); an empty dict for a process that has ended."""
    try:
        lines = (
            Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        )
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {line.split()[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
