"""Two gates that hold a host back: cgroup quotas and stop signals."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Protocol

from laggard.network_emulation.compute.cgroups import QUOTA_US, HostCgroup

_SIGNAL_SLICE_NS = 500_000
"""Usual slice of `SignalGate`: CPU time between two stops."""
_GRANTS_US = tuple(range(QUOTA_US, QUOTA_US * 3 // 2, QUOTA_US // 16))
"""Lengths that `QuotaGate` chooses from, from 1 to 1.5 times the smallest quota."""


class Gate(Protocol):
    """Interface of a gate: holds the processes of one host back and releases them.

    Attributes:
        slice_ns: CPU time of the current slice.
        idle_ns: longest time between two looks at the host.
        early: part of a slice's debt from which the host is held back before the slice is used up.
        queue_remembers: True if the kernel reports the time held back as run-queue time.
        starves: True if the host may run out of its slice without the limiter seeing it.
    """

    slice_ns: int
    idle_ns: int
    early: float
    queue_remembers: bool
    starves: bool

    def admit(self, pid: int) -> None:
        """Hold this process too from now on."""

    def descendants(self, known: Collection[int]) -> Iterable[int]:
        """Return processes of the host that are not in `known` and that those have started."""

    def grant(self, least_ns: int = 0) -> None:
        """Let the host compute for a slice: `least_ns` or the usual length, if that is longer."""

    def was_stopped(self) -> bool:
        """Grant another slice to a host that does not use its current one.

        Returns:
            True if the host had used up its current slice.
        """

    def hold(self) -> None:
        """Keep the host from computing."""

    def lift(self) -> None:
        """Let the host compute without a limit."""

    def weigh(self, load: float) -> None:
        """Set the part of its core that the host gets while others want the core.

        `load` is above 0 and at most 1.
        """


class QuotaGate:
    """Gate that grants a cgroup's quota by hand; the kernel stops the host at the end of a slice.

    The kernel stops a host even if it used up its slice between two looks, and sleeping threads
    are not disturbed.
    """

    idle_ns = 1_000_000
    early = float("inf")
    queue_remembers = True
    starves = True

    def __init__(self, group: HostCgroup) -> None:
        self._group = group
        self._chance = random.Random(group.quota)  # noqa: S311 - varies slices, no secret
        self.slice_ns = _GRANTS_US[0] * 1000

    def admit(self, pid: int) -> None:
        """Do nothing: the controller has put the process, or its ancestor, into the group."""

    def descendants(self, known: Collection[int]) -> Iterable[int]:
        """Return all other processes of the group, which no process leaves by itself."""
        return [pid for pid in self._group.members() if pid not in known]

    def grant(self, least_ns: int = 0) -> None:
        """Refill the group's quota; the write replaces whatever was left.

        Grants vary in length. With equal grants, phases as long as a slice would always end just
        where they are held back.
        """
        granted_us = max(self._chance.choice(_GRANTS_US), least_ns // 1000)
        self.slice_ns = granted_us * 1000
        os.pwrite(self._group.quota, self._group.grant_of(granted_us), 0)

    def was_stopped(self) -> bool:
        """Grant a slice and return True if the kernel had stopped the group.

        Processes that started and ended unseen may have used the slice up. The kernel counts a
        stop when the next grant ends it.
        """
        before = self._group.stopped_time()
        self.grant()
        return self._group.stopped_time() > before

    def hold(self) -> None:
        """Do nothing: the kernel stops the group when its quota is used up.

        It does so at its next tick at the latest.
        """

    def lift(self) -> None:
        """Remove the quota."""
        os.pwrite(self._group.quota, self._group.unlimited, 0)

    def weigh(self, load: float) -> None:
        """Set the weight by which the kernel divides a core between groups."""
        os.pwrite(self._group.weight, self._group.weight_of(load), 0)


class SignalGate:
    """Gate that sends SIGSTOP and SIGCONT, which every user may send to their own processes.

    Every thread of the process wakes up for each signal, so the slices are no finer than short
    phases need. The debt of `early` slices is collected as soon as the host is seen to compute,
    because a short phase may end before the next look.
    """

    idle_ns = 500_000
    early = 0.6
    queue_remembers = False
    starves = False

    def __init__(self) -> None:
        self.slice_ns = _SIGNAL_SLICE_NS
        self._processes: list[int] = []

    def admit(self, pid: int) -> None:
        """Keep a pidfd of the process: it cannot refer to a later process with the same number."""
        with suppress(ProcessLookupError):
            self._processes.append(os.pidfd_open(pid))

    def descendants(self, known: Collection[int]) -> Iterable[int]:
        """Return children of the known processes, except those whose parent has ended."""
        return [child for pid in known for child in _list_children(pid) if child not in known]

    def grant(self, least_ns: int = 0) -> None:
        """Continue the processes and set the length of the slice."""
        self.slice_ns = max(_SIGNAL_SLICE_NS, least_ns)
        self._signal(signal.SIGCONT)

    def was_stopped(self) -> bool:
        """Return False: only `hold` stops the processes."""
        return False

    def hold(self) -> None:
        """Stop the processes."""
        self._signal(signal.SIGSTOP)

    def lift(self) -> None:
        """Continue the processes."""
        self._signal(signal.SIGCONT)

    def weigh(self, load: float) -> None:
        """Do nothing: an ordinary user cannot raise the weight of a process."""

    def _signal(self, number: signal.Signals) -> None:
        for process in tuple(self._processes):
            try:
                signal.pidfd_send_signal(process, number)
            except ProcessLookupError:
                self._processes.remove(process)
                os.close(process)


def _list_children(pid: int) -> Iterable[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        # Only names are needed, and this runs often.
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with (
                suppress(FileNotFoundError, ProcessLookupError),
                # A plain open is faster than pathlib.
                open(f"/proc/{pid}/task/{thread}/children") as listed,  # noqa: PTH123
            ):
                yield from map(int, listed.read().split())
