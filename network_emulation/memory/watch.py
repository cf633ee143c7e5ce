"""Looks at what the workers of limited hosts hold in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.5
"""Real seconds between two looks: a worker that holds more for a shorter time may go unseen."""

_COUNTED = ("RssAnon:", "RssShmem:", "VmSwap:")


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
            f"{who} {held:.0f} MiB, and {self.host} has {limit:.0f} MiB of memory — raise `memory` in heterogeneity.yaml,{several}"
            " lower batch_size or take a smaller model"
        )


@dataclass
class MemoryWatch:
    """Watches the hosts of one run.

    Attributes:
        limits: bytes that each limited host has.
        peaks: the most that each one's workers were seen to hold.
    """

    limits: Mapping[str, int]
    peaks: dict[str, int] = field(default_factory=dict)
    _looked_s: float = 0.0

    def look(self, processes: Iterable[tuple[str, int]]) -> Overrun | None:
        """The first host that has too little, if it is time to look again.

        Args:
            processes: host and process id of every worker.
        """
        now_s = time.monotonic()
        if not self.limits or now_s - self._looked_s < LOOK_S:
            return None
        self._looked_s = now_s
        held: dict[str, dict[int, int]] = {}
        for host, pid in processes:
            if host in self.limits:
                held.setdefault(host, {})[pid] = held_bytes(pid)
        overruns = [overrun for host, each in held.items() if (overrun := self._enter(host, each)) is not None]
        return overruns[0] if overruns else None

    def _enter(self, host: str, held: Mapping[int, int]) -> Overrun | None:
        total, limit = sum(held.values()), self.limits[host]
        self.peaks[host] = max(total, self.peaks.get(host, 0))
        return Overrun(host, limit, total, max(held, key=lambda pid: held[pid]), len(held)) if total > limit else None


def held_bytes(pid: int) -> int:
    """What the kernel could not take back from a process; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_COUNTED))
