"""What a host owes for the CPU time it has used: the arithmetic that makes a share mean speed.

A worker that has computed for x of CPU time must have taken x / share of wall time. So each x earns
it x (1 / share - 1) of being held back, less any time it spent runnable but waiting for the core.
Where it is known that this x did only the work of y at full speed (`efficiency`), it must have
taken y / share. The debt is paid only while the worker would otherwise compute; it neither shrinks
nor turns into credit while the worker communicates. Then the wall time of any set of phases is
their CPU time over the share, up to the debt of one slice carried from one phase to the next:
phases of 1 ms are slowed like phases of 100 ms, whatever the gaps between them.
"""

from __future__ import annotations

CATCH_UP_NS = 20_000_000
"""Most lateness, in wall time, that a host kept from its core by others may make up for at full
speed."""


class Ledger:
    """The account of one host.

    Attributes:
        owed_ns: wall time for which it is still to be held back; negative while it makes up for
            waiting.
        used_ns: CPU time since the last time it was held back or granted more.
        lost_ns: wall time for which others kept it from its core, beyond what it may make up for,
            until somebody takes note.
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
        """Speed of the host, in cores."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        """A new speed; what was used under the old one and not yet paid for is paid for at the
        new.
        """
        rate = 1 / share - 1
        self.owed_ns = self.owed_ns * rate / self._rate if self._rate > 0 else 0.0
        self._share, self._rate = share, rate

    @property
    def slow_by(self) -> float:
        """Wall time owed per CPU time used."""
        return self._rate

    def observe(
        self, elapsed_ns: int, cpu_ns: int, queued_ns: int, work_ns: float | None = None
    ) -> None:
        """Enter an interval in which the host was free to compute.

        Args:
            elapsed_ns: its length.
            cpu_ns: what the host's threads computed in it, together.
            queued_ns: what the kernel says they waited for the core, together, in waits that ended
                in it; waits of several threads overlap and a wait may have begun earlier, so only
                time in which nothing was computed counts.
            work_ns: CPU time at full speed that this computing was worth; `cpu_ns` where nobody
                knows better.
        """
        self._idle_ns += elapsed_ns - cpu_ns
        if cpu_ns == 0:
            return
        waited_ns = max(0, min(self._idle_ns, queued_ns))
        self._idle_ns = min(max(self._idle_ns - waited_ns, 0), elapsed_ns)
        self.owed_ns += (cpu_ns if work_ns is None else work_ns) / self._share - cpu_ns - waited_ns
        # At a whole core there is nothing to make up with: what it computes takes its time anyway.
        least_ns = -CATCH_UP_NS if self._rate > 0 else 0
        if self.owed_ns < least_ns:
            self.lost_ns += least_ns - self.owed_ns
            self.owed_ns = least_ns
        self.used_ns += cpu_ns

    def observe_held(self, work_ns: float) -> None:
        """Enter what the host computed although it was held back, at full speed: all of its wall
        time is still owed.
        """
        self.owed_ns += work_ns / self._share

    def correct(self, work_ns: float) -> None:
        """Enter by how much the work done lately, in CPU time at full speed, was more than what was
        charged for it.
        """
        self.owed_ns = max(self.owed_ns + work_ns / self._share, min(self.owed_ns, -CATCH_UP_NS))

    def pay(self, held_ns: int, queue_remembers: bool) -> None:
        """Enter that the host was held back for `held_ns` when it would have computed, and is now
        free again.

        Args:
            held_ns: wall time.
            queue_remembers: the kernel will count that time as waiting once the host has run again.
        """
        self.owed_ns -= held_ns
        self.used_ns = 0
        if not queue_remembers:
            self._idle_ns = 0
