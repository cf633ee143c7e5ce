"""Decides from the ranks' signs of life which one hangs; the same for ranks here and on far
machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from laggard.workloads.tracing.heartbeat import Beat, suspects

IDLE_TIMEOUT_S = 15.0
"""Virtual seconds that a worker may stand still without using its CPU before it counts as hung."""

BUSY_TIMEOUT_S = 600.0
"""The same for a worker that computes."""

_MAX_IDLE_CPU = 0.02
_MIN_IDLE_S = 2.0


@dataclass(frozen=True)
class ProcessState:
    """A process as its kernel sees it: CPU seconds used so far, and whether somebody stopped it."""

    cpu_s: float
    stopped: bool


@dataclass
class HangDetector:
    """Remembers who is suspected since when.

    Args:
        dilation: real seconds per virtual second.
    """

    dilation: float = 1.0
    _suspected: dict[int, tuple[int, float]] = field(default_factory=dict)

    def find_hung_rank(
        self, beats: Sequence[Beat], now_ns: int, read_state: Callable[[int], ProcessState]
    ) -> Beat | None:
        """The last beat of a rank that hangs; None while nobody does.

        A rank that was stopped may have been waiting for others, as they now do for it: it comes
        first.

        Args:
            beats: the last of every rank, in rank order.
            now_ns: on the beats' clock.
            read_state: of a rank's process; asked only once somebody is suspected.
        """
        suspected = suspects(beats, now_ns, IDLE_TIMEOUT_S * self.dilation)
        used = {rank: read_state(rank).cpu_s for rank in suspected}
        self._suspected = {
            rank: self._update_idle_since(rank, now_ns, used[rank]) for rank in suspected
        }
        idle = [
            rank for rank in suspected if now_ns - self._suspected[rank][0] >= _MIN_IDLE_S * 1e9
        ]
        stopped = [beat.rank for beat in beats if idle and read_state(beat.rank).stopped]
        found = stopped or idle or suspects(beats, now_ns, BUSY_TIMEOUT_S * self.dilation)
        return beats[found[0]] if found else None

    def _update_idle_since(self, rank: int, now_ns: int, cpu_s: float) -> tuple[int, float]:
        """Since when a rank has used no CPU to speak of, and how much it had used then."""
        since_ns, before_s = self._suspected.get(rank, (now_ns, cpu_s))
        busy = cpu_s - before_s > _MAX_IDLE_CPU * max(1.0, (now_ns - since_ns) / 1e9)
        return (now_ns, cpu_s) if busy else (since_ns, before_s)


def format_hang(beat: Beat, now_ns: int) -> str:
    """Where a hung rank stands, and for how long it has."""
    return (
        f"hangs: in phase {beat.phase} of step {beat.step} for"
        f" {(now_ns - beat.time_ns) / 1e9:.0f} s"
    )


def read_process_state(pid: int) -> ProcessState:
    """Of a process of this machine; one that has gone has used nothing."""
    import psutil

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return ProcessState(
            float(times.user + times.system), bool(process.status() == psutil.STATUS_STOPPED)
        )
    except psutil.NoSuchProcess:
        return ProcessState(0.0, False)
