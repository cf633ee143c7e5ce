"""Detection of hanging ranks from their signs of life, on this machine and on remote ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from laggard.workloads.tracing.heartbeat import Beat, suspects

IDLE_TIMEOUT_S = 15.0
"""Virtual seconds without progress after which a worker that uses no CPU is hung."""

BUSY_TIMEOUT_S = 600.0
"""Virtual seconds without progress after which a worker that computes is hung."""

# A suspected rank is idle if it uses at most this fraction of a core for at least this many real
# seconds.
_MAX_IDLE_CPU = 0.02
_MIN_IDLE_S = 2.0


@dataclass(frozen=True)
class ProcessState:
    """State of a process according to its kernel.

    Attributes:
        cpu_s: CPU seconds used so far.
        stopped: whether a signal has stopped the process.
    """

    cpu_s: float
    stopped: bool


@dataclass
class HangDetector:
    """Detector of hung ranks, which remembers since when each rank is suspected.

    Args:
        dilation: real seconds per virtual second.
    """

    dilation: float = 1.0
    _suspected: dict[int, tuple[int, float]] = field(default_factory=dict)

    def find_hung_rank(
        self, beats: Sequence[Beat], now_ns: int, read_state: Callable[[int], ProcessState]
    ) -> Beat | None:
        """Return the last beat of a hung rank; None if no rank hangs.

        A stopped rank is reported first, even if it is itself waiting: its peers wait for it now.

        Args:
            beats: last beat of every rank, in rank order.
            now_ns: current time on the beats' clock.
            read_state: function that reads the state of a rank's process; called only if a rank is
                suspected.
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
        """Return since when a rank has used almost no CPU, and its CPU seconds at that time."""
        since_ns, before_s = self._suspected.get(rank, (now_ns, cpu_s))
        busy = cpu_s - before_s > _MAX_IDLE_CPU * max(1.0, (now_ns - since_ns) / 1e9)
        return (now_ns, cpu_s) if busy else (since_ns, before_s)


def format_hang(beat: Beat, now_ns: int) -> str:
    """Describe the position of a hung rank and the time since its last beat."""
    return (
        f"hangs: in phase {beat.phase} of step {beat.step} for"
        f" {(now_ns - beat.time_ns) / 1e9:.0f} s"
    )


def read_process_state(pid: int) -> ProcessState:
    """Read the state of a process of this machine; a process that is gone has used no CPU."""
    import psutil

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return ProcessState(
            float(times.user + times.system), bool(process.status() == psutil.STATUS_STOPPED)
        )
    except psutil.NoSuchProcess:
        return ProcessState(0.0, False)
