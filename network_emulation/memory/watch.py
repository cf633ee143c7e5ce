"""Looks at what the workers of limited hosts hold in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.5
"""Real seconds between two looks: a worker that holds more for a shorter time is told of
afterwards, and does not end the run."""

_COUNTED = ("RssAnon:", "RssShmem:", "VmSwap:")
_MAPPED = "RssFile:"
_HIGHEST = "VmHWM:"
_FORGET_HIGHEST = b"5"


@dataclass(frozen=True)
class Overrun:
    """A host whose workers hold more than it has.

    Attributes:
        host: its name.
        limit_bytes: what it has.
        held_bytes: what they hold together.
        pid: the biggest of them.
        processes: how many they are.
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
            f"{who} {held:.0f} MiB, and {self.host} has {limit:.0f} MiB of memory — raise `memory`"
            f" in heterogeneity.yaml,{several} lower batch_size or take a smaller model"
        )


@dataclass
class MemoryWatch:
    """Watches the hosts of one run.

    Attributes:
        limits: bytes that each limited host has.
        peaks: the most that each one's workers held, also between two looks: of several workers,
            the sum of what each held at most.
        clock: seconds that pass between looks.
    """

    limits: Mapping[str, int]
    peaks: dict[str, int] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _mapped: dict[int, int] = field(default_factory=dict)
    _looked_s: float = -LOOK_S

    def look(self, processes: Iterable[tuple[str, int]]) -> Overrun | None:
        """The first host that has too little, if it is time to look again.

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
        """The most that a process can have held since the last look, of which the kernel counts
        mapped files too.

        The counter starts anew with each look (proc_pid_clear_refs(5)), so that what was mapped
        then, or is now, was so at the peak.
        """
        mapped = status.get(_MAPPED, 0)
        before, self._mapped[pid] = self._mapped.get(pid, 0), mapped
        with suppress(OSError):  # it has ended, or the kernel keeps the highest for good
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
    """What to tell, after a run that no overrun ended, of hosts whose workers held too much for a
    moment.

    Args:
        limits: bytes that each limited host has.
        peaks: the most that each one's workers held.
    """
    return tuple(
        f"{host}: its workers held up to {peaks[host] / 2**20:.0f} MiB for less than {LOOK_S:g} s,"
        f" and it has {limit / 2**20:.0f} MiB of memory — such a device would have ended them:"
        " raise `memory` in heterogeneity.yaml, or lower batch_size"
        for host, limit in limits.items()
        if peaks.get(host, 0) > limit
    )


def held_bytes(pid: int) -> int:
    """What the kernel could not take back from a process; 0 of one that has ended."""
    return _count_held_bytes(_read_memory_status(pid))


def _count_held_bytes(status: Mapping[str, int]) -> int:
    return sum(status.get(name, 0) for name in _COUNTED)


def _read_memory_status(pid: int) -> dict[str, int]:
    """The bytes that proc_pid_status(5) gives; none of a process that has ended."""
    try:
        lines = (
            Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        )
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {line.split()[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
