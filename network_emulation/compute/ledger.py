"""Ledger of a host: the arithmetic that makes a share mean speed.

A worker that has computed for x of CPU time must have taken x / share of wall time. So each x adds
x (1 / share - 1) to the time for which the worker must be held back, minus any time it was
runnable but waited for the core. If this x is known to have done only the work of y at full speed
(`efficiency`), it must have taken y / share.

The debt is paid only while the worker would otherwise compute. While the worker communicates, the
debt neither shrinks nor turns into credit. Then the wall time of any set of phases is their CPU
time divided by the share, up to the debt of one slice that is carried from one phase to the next.
Phases of 1 ms are slowed like phases of 100 ms, whatever the gaps between them.
"""

from __future__ import annotations

CATCH_UP_NS = 20_000_000
"""Largest delay, in wall time, that a host may make up for at full speed after others kept it
from its core."""


class Ledger:
    """Account of one host.

    Attributes:
        owed_ns: wall time for which the host must still be held back; negative while it makes up
            for waiting.
        used_ns: CPU time since the host was last held back or granted more.
        lost_ns: wall time for which others kept the host from its core, beyond the part it may
            make up for; its reader resets it.
    """

    __slots__ = ("_idle_ns", "_rate", "_share", "lost_ns", "owed_ns", "used_ns")

    def __init__(self, share: float) -> None:
        self.owed_ns = 0.0
        self.lost_ns = 0.0
        self.used_ns = 0
        self._idle_ns = 0
        self._share = share
        self._rate = 1 / share - 1

    @property
    def share(self) -> float:
        """Return the speed of the host, in cores."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        """Set a new speed; debt from the old speed is converted to the new one."""
        rate = 1 / share - 1
        self.owed_ns = self.owed_ns * rate / self._rate if self._rate > 0 else 0.0
        self._share, self._rate = share, rate

    @property
    def slow_by(self) -> float:
        """Return the wall time owed per CPU time used."""
        return self._rate

    def observe(
        self, elapsed_ns: int, cpu_ns: int, queued_ns: int, work_ns: float | None = None
    ) -> None:
        """Enter an interval in which the host was free to compute.

        Args:
            elapsed_ns: length of the interval.
            cpu_ns: CPU time of all threads of the host in it.
            queued_ns: run-queue time that the kernel reports for waits that ended in the interval,
                summed over threads. Waits of several threads overlap, and a wait may have begun
                earlier, so only time without computing counts.
            work_ns: work done, in CPU time at full speed; None if it is unknown, which means
                `cpu_ns`.
        """
        self._idle_ns += elapsed_ns - cpu_ns
        if cpu_ns == 0:
            return
        # Several threads may report the same wait; the host as a whole waited at most while it was
        # idle.
        waited_ns = max(0, min(self._idle_ns, queued_ns))
        self._idle_ns = min(max(self._idle_ns - waited_ns, 0), elapsed_ns)
        self.owed_ns += (cpu_ns if work_ns is None else work_ns) / self._share - cpu_ns - waited_ns
        # A host with a whole core has no spare speed to make up for a delay.
        least_ns = -CATCH_UP_NS if self._rate > 0 else 0
        if self.owed_ns < least_ns:
            self.lost_ns += least_ns - self.owed_ns
            self.owed_ns = least_ns
        self.used_ns += cpu_ns

    def observe_held(self, work_ns: float) -> None:
        """Enter work that the host did although it was held back; all its wall time is still owed.

        Args:
            work_ns: the work, in CPU time at full speed.
        """
        self.owed_ns += work_ns / self._share

    def correct(self, work_ns: float) -> None:
        """Enter the difference between recent work and the amount charged for it.

        Args:
            work_ns: the difference, in CPU time at full speed; positive if too little was charged.
        """
        self.owed_ns = max(self.owed_ns + work_ns / self._share, min(self.owed_ns, -CATCH_UP_NS))

    def pay(self, held_ns: int, queue_remembers: bool) -> None:
        """Enter that the host was held back while it would have computed, and is now free again.

        Args:
            held_ns: wall time for which it was held back.
            queue_remembers: True if the kernel reports this time as waiting once the host has run
                again.
        """
        self.owed_ns -= held_ns
        self.used_ns = 0
        if not queue_remembers:
            self._idle_ns = 0
