"""The two ways of holding a host back."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Protocol

from laggard.network_emulation.compute.cgroups import QUOTA_US, HostCgroup

_SIGNAL_SLICE_NS = 500_000
_GRANTS_US = tuple(range(QUOTA_US, QUOTA_US * 3 // 2, QUOTA_US // 16))


class Gate(Protocol):
    """Holds the processes of one host back and lets them go."""

    slice_ns: int
    idle_ns: int
    early: float
    queue_remembers: bool
    starves: bool

    def admit(self, pid: int) -> None:
        """Hold this process too from now on."""

    def descendants(self, known: Collection[int]) -> Iterable[int]:
        """Processes of the host that are not among those known: what these have started."""

    def grant(self, least_ns: int = 0) -> None:
        """Let the host compute for a slice, of `least_ns` or of what is usual, whichever is
        longer.
        """

    def was_stopped(self) -> bool:
        """Let a host compute for a slice that it should have left but does not use; whether it had
        none left.
        """

    def hold(self) -> None:
        """Keep the host from computing."""

    def lift(self) -> None:
        """Let the host compute without end."""

    def weigh(self, load: float) -> None:
        """What the host needs of its core, above 0 and at most 1, and is to have while others want
        the core too.
        """


class QuotaGate:
    """A cgroup whose quota is granted by hand: the kernel itself stops the host when a slice is
    used up.

    A host that computed its slice while nobody looked is stopped all the same, and sleeping threads
    are not disturbed.
    """

    idle_ns = 1_000_000
    early = float("inf")
    queue_remembers = True
    starves = True

    def __init__(self, group: HostCgroup) -> None:
        self._group = group
        self._chance = random.Random(group.quota)  # noqa: S311 - only against resonance
        self.slice_ns = _GRANTS_US[0] * 1000

    def admit(self, pid: int) -> None:
        """The controller has put the process, or its ancestor, into the group."""

    def descendants(self, known: Collection[int]) -> Iterable[int]:
        """Whatever else is in the group, which no process leaves by itself."""
        return [pid for pid in self._group.members() if pid not in known]

    def grant(self, least_ns: int = 0) -> None:
        """Refill the group's quota; a write starts it anew, whatever was left.

        Grants differ, since phases as long as a slice would otherwise come to end just where they
        are held back.
        """
        granted_us = max(self._chance.choice(_GRANTS_US), least_ns // 1000)
        self.slice_ns = granted_us * 1000
        os.pwrite(self._group.quota, self._group.grant_of(granted_us), 0)

    def was_stopped(self) -> bool:
        """Processes that came and went unseen may have used the slice up: the kernel counts a stop
        when a grant ends it.
        """
        before = self._group.stopped_time()
        self.grant()
        return self._group.stopped_time() > before

    def hold(self) -> None:
        """The kernel has stopped the group when its quota was used up, and stops it again at its
        next tick if not.
        """

    def lift(self) -> None:
        """No quota."""
        os.pwrite(self._group.quota, self._group.unlimited, 0)

    def weigh(self, load: float) -> None:
        """Between groups the kernel shares a core by their weights."""
        os.pwrite(self._group.weight, self._group.weight_of(load), 0)


class SignalGate:
    """SIGSTOP and SIGCONT, which any user may send to processes of their own.

    Every thread of the process wakes for each, so the slices are no finer than short phases need.
    `early`: a debt of this part of a slice is collected as soon as the host is seen to compute,
    since a short phase may end before the next look.
    """

    idle_ns = 500_000
    early = 0.6
    queue_remembers = False
    starves = False

    def __init__(self) -> None:
        self.slice_ns = _SIGNAL_SLICE_NS
        self._processes: list[int] = []

    def admit(self, pid: int) -> None:
        """Keep a descriptor of the process, which no later one with its number can be mistaken
        for.
        """
        with suppress(ProcessLookupError):
            self._processes.append(os.pidfd_open(pid))

    def descendants(self, known: Collection[int]) -> Iterable[int]:
        """Children of those known; one whose parent had ended before anybody looked is not
        found.
        """
        return [child for pid in known for child in _list_children(pid) if child not in known]

    def grant(self, least_ns: int = 0) -> None:
        """Continue."""
        self.slice_ns = max(_SIGNAL_SLICE_NS, least_ns)
        self._signal(signal.SIGCONT)

    def was_stopped(self) -> bool:
        """Nobody but `hold` stops it."""
        return False

    def hold(self) -> None:
        """Stop."""
        self._signal(signal.SIGSTOP)

    def lift(self) -> None:
        """Continue."""
        self._signal(signal.SIGCONT)

    def weigh(self, load: float) -> None:
        """Nothing: an ordinary user's processes weigh what they weigh."""

    def _signal(self, number: signal.Signals) -> None:
        for process in tuple(self._processes):
            try:
                signal.pidfd_send_signal(process, number)
            except ProcessLookupError:
                self._processes.remove(process)
                os.close(process)


def _list_children(pid: int) -> Iterable[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        # Names are all that is needed.
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with (
                suppress(FileNotFoundError, ProcessLookupError),
                # Called often.
                open(f"/proc/{pid}/task/{thread}/children") as listed,  # noqa: PTH123
            ):
                yield from map(int, listed.read().split())
