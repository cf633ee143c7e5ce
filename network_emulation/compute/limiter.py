"""Limiter process: measures hosts, updates their ledgers and holds them back.

It sleeps until the next moment at which something can be due: a slice is used up, a host must be
released, or idle hosts are to be looked at again. The code runs a few thousand times a second, in
a process of its own that the controller forks.
"""

from __future__ import annotations

import gc
import os
import select
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from laggard.core.work_counter import WorkCounter
from laggard.network_emulation.compute.efficiency import Efficiency
from laggard.network_emulation.compute.host_counters import HostCounters
from laggard.network_emulation.compute.ledger import CATCH_UP_NS, Ledger
from laggard.network_emulation.compute.meter import ProcessMeter
from laggard.network_emulation.compute.pulse import PulseCounter
from laggard.network_emulation.compute.stop_signals import Gate
from laggard.network_emulation.dilation import compute_load
from laggard.network_emulation.realtime import become_punctual

PRIORITY = 10
"""SCHED_FIFO priority. It is below the link emulator's, whose work is as short and more urgent."""

FULL_SHARE = 0.999
"""Share from which a host is not held back: pinning alone gives it one whole core."""

SLICE_OF_BURST = 1 / 16
"""Largest length of a slice, as a part of the CPU time that the host has used since it last
idled. So the end of a phase is exact to this part, and a long phase is not cut into needlessly
many pieces, each of which begins with cold caches."""

LONGEST_SLICE_NS = 5_000_000
"""Upper limit of a slice, however long the host has computed."""

# Timing of looks and holds, in nanoseconds. `_SETTLING_NS` is the interval of looks at a host that
# still runs although it is held; `_WATCH_NS` of looks at hosts without a limit; `_FAMILY_NS` of
# the search for new children. `_STARVED_NS` and `_SURELY_STARVED_NS` are the waits after which a
# host counts as starved, the latter plus `_TURN_NS` per host (see `LimitedHost._is_starved`).
_SHORTEST_HOLD_NS = 200_000
_SHORTEST_SLEEP_NS = 50_000
_EARLY_WAKE_NS = 20_000
_ROUNDING_NS = 5_000
_SETTLING_NS = 100_000
_WATCH_NS = 5_000_000
_FAMILY_NS = 2_000_000
_STARVED_NS = 2_000_000
_SURELY_STARVED_NS = 20_000_000
_TURN_NS = 2_000_000
_UNSEEN_NS = CATCH_UP_NS
_LONGEST_UNSEEN_NS = 100_000_000
_WITHOUT_END_NS = 1 << 62

IDLE_PART = 1 / 32
"""Longest time between two looks at an idle host, as a part of the wall time of one slice."""

_LONGEST_IDLE_NS = 5_000_000


@dataclass(frozen=True)
class Attach:
    """Request to hold a process of a host to the host's share.

    Attributes:
        host: name of the host.
        pid: the process.
        family: also hold every process that it starts.
        work: file in which the process counts its work; None if it does not count.
    """

    host: str
    pid: int
    family: bool = False
    work: Path | None = None


@dataclass(frozen=True)
class SetShare:
    """Request to change the share of a host."""

    host: str
    share: float


class LimitedHost:
    """One host under limits: its processes, its ledger and its gate."""

    def __init__(
        self, share: float, gate: Gate, tally: HostCounters, fullness: float = 0.0
    ) -> None:
        self._fullness = fullness
        self.ledger = Ledger(min(share, 1.0))
        self.gate = gate
        self._tally = tally
        self._meters: list[ProcessMeter] = []
        self._efficiencies: dict[int, Efficiency] = {}
        self._held_since_ns = 0
        self._free_again_ns = 0
        self._payment_to_recall_ns = 0
        self._limited = False
        self._watched_ns = 0
        self._burst_ns = 0
        self._family = False
        self._family_seen_ns = 0
        self._without_core_ns = 0
        self._ask_again_ns = 0
        self._moves_data = False
        self._prepaid_ns = 0
        self.ran_ns = 0

    @property
    def needs_looks(self) -> bool:
        """Return True if the host has processes to hold back or to watch."""
        return bool(self._meters)

    def attach(
        self, pid: int, now_ns: int, *, family: bool = False, work: Path | None = None
    ) -> None:
        """Hold one more process.

        Args:
            pid: the process.
            now_ns: current time.
            family: from now on also hold every process that the host's processes start.
            work: file in which the process counts its work.
        """
        self._free(now_ns)
        if work is not None:
            self._efficiencies[pid] = Efficiency(
                WorkCounter(work), self.ledger.share, self._fullness
            )
        self._family |= family
        if not self._meters:  # a new process does not inherit the debt of processes that ended
            self.ledger = Ledger(self.ledger.share)
        self.gate.admit(pid)
        self._meters.append(ProcessMeter(pid))
        self._apply(now_ns)

    def set_share(self, share: float, now_ns: int) -> None:
        """Apply another share from now on."""
        self._free(now_ns)
        self.ledger.share = min(share, 1.0)
        for efficiency in self._efficiencies.values():
            efficiency.change_share(self.ledger.share)
        self._apply(now_ns)

    def _apply(self, now_ns: int) -> None:
        self._limited = self.ledger.share < FULL_SHARE
        self._watched_ns = now_ns
        self.ledger.used_ns = 0
        self.gate.weigh(compute_load(self.ledger.share))
        if not self._limited:
            self.gate.lift()
        elif self.ledger.owed_ns > _SHORTEST_HOLD_NS and self._is_runnable():
            self._hold(now_ns)
        else:
            self._grant()

    def look(self, now_ns: int, elapsed_ns: int, others: Collection[LimitedHost] = ()) -> int:
        """Measure the host's last interval, then hold it back or release it.

        Args:
            now_ns: current time.
            elapsed_ns: time since the last look.
            others: all hosts that may use the core.

        Returns:
            Time of the next look, at the latest.
        """
        if not self._limited:
            # A host that is not held back is only watched for time that it loses, so it is looked
            # at rarely.
            if now_ns < self._watched_ns + _WATCH_NS:
                return self._watched_ns + _WATCH_NS
            elapsed_ns, self._watched_ns = now_ns - self._watched_ns, now_ns
        if self._family and now_ns - self._family_seen_ns >= _FAMILY_NS:
            self._adopt(now_ns)
        cpu_ns, work_ns = self._used()
        if any(meter.ended for meter in self._meters):
            self._forget_ended(now_ns)
        if self._held_since_ns:
            return self._look_held(now_ns, cpu_ns, work_ns)
        self.ledger.observe(elapsed_ns, cpu_ns, self._queued_ns(now_ns) if cpu_ns else 0, work_ns)
        self._note(work_ns)
        if not self._limited:
            return now_ns + _WATCH_NS
        self._burst_ns += cpu_ns
        if not cpu_ns:
            self._burst_ns = 0
            return (
                self._relieve(now_ns)
                if self._is_starved(now_ns, others)
                else self._next_idle_look_ns(now_ns)
            )
        self.ran_ns = now_ns
        self._without_core_ns = 0
        return self._collect(now_ns)

    def _used(self) -> tuple[int, float]:
        """Return the CPU time since the last look, and its work.

        Both are in ns; work is CPU time at full speed. What a process used just before its end is
        not known.
        """
        cpu_ns, work_ns = 0, 0.0
        self._moves_data = False
        for meter in self._meters:
            used_ns = meter.cpu_ns()
            cpu_ns += used_ns
            efficiency = self._efficiencies.get(meter.pid)
            # A host that is not held back runs at full speed by definition.
            if efficiency is None or not self._limited:
                work_ns += used_ns
            elif used_ns:
                self.ledger.correct(efficiency.charge_uncounted())
                worth_ns = efficiency.charge(used_ns)
                self._moves_data |= not worth_ns
                work_ns += worth_ns or used_ns * self.ledger.share
        return cpu_ns, work_ns

    def _note(self, work_ns: float) -> None:
        """Add the interval's due and lost time to the shared counters."""
        ledger = self.ledger
        self._tally.add(work_ns / ledger.share, ledger.lost_ns, ledger.owed_ns)
        ledger.lost_ns = 0.0

    def _collect(self, now_ns: int) -> int:
        ledger, gate = self.ledger, self.gate
        used_up = ledger.used_ns >= gate.slice_ns - _ROUNDING_NS
        if used_up or ledger.owed_ns > gate.early * gate.slice_ns * ledger.slow_by:
            # A host that does not want to compute would pay nothing while it is held back, so the
            # debt waits for its next phase.
            if ledger.owed_ns > _SHORTEST_HOLD_NS and self._is_runnable():
                self._hold(now_ns)
                return min(self._free_again_ns, now_ns + _SETTLING_NS)
            if used_up:
                self._grant()
                ledger.used_ns = 0
        return now_ns + min(max(gate.slice_ns - ledger.used_ns, _SHORTEST_SLEEP_NS), gate.idle_ns)

    def _next_idle_look_ns(self, now_ns: int) -> int:
        """Return a time on a grid that all idle hosts share, so that one wake-up serves many."""
        grid_ns = self.gate.idle_ns
        return -(-(now_ns + self._idle_ns) // grid_ns) * grid_ns

    @property
    def _idle_ns(self) -> int:
        """Return the longest time between two looks while the host is idle.

        If the kernel stops the host by itself and reports the wait, a late look costs nothing. A
        small share needs few looks then: a hundred hosts looked at every millisecond would take
        more of the cores than their work.
        """
        gate = self.gate
        if not gate.queue_remembers:
            return gate.idle_ns
        slice_ns = gate.slice_ns * self.ledger.slow_by * IDLE_PART
        return max(gate.idle_ns, min(int(slice_ns), _LONGEST_IDLE_NS))

    def _look_held(self, now_ns: int, cpu_ns: int, work_ns: float) -> int:
        if cpu_ns:
            self.ledger.observe_held(work_ns)
            self._refund(min(cpu_ns, self._prepaid_ns))
            self._note(work_ns)
        if now_ns < self._free_again_ns - _EARLY_WAKE_NS:
            # The host still ran, so its quota is not quite used up. The kernel accounts for the
            # rest, and stops the host, when another task gets the core: this process at its next
            # look, or the kernel's tick, which can be milliseconds away.
            return (
                min(self._free_again_ns, now_ns + _SETTLING_NS) if cpu_ns else self._free_again_ns
            )
        self._free(now_ns)
        self._grant()
        # It wanted to compute, so it takes the core, or waits for it, from now on.
        self.ran_ns = now_ns
        return now_ns + min(self.gate.slice_ns, self.gate.idle_ns)

    def _grant(self) -> None:
        self.gate.grant(min(int(self._burst_ns * SLICE_OF_BURST), LONGEST_SLICE_NS))

    def _hold(self, now_ns: int) -> None:
        self.gate.hold()
        self._held_since_ns = now_ns
        self._free_again_ns = now_ns + int(self.ledger.owed_ns)

    def _free(self, now_ns: int) -> None:
        """Enter the time held back so far; the caller opens the gate."""
        if self._held_since_ns:
            held_ns = now_ns - self._held_since_ns
            self.ledger.pay(held_ns, self.gate.queue_remembers)
            self._payment_to_recall_ns += held_ns if self.gate.queue_remembers else 0
            self._held_since_ns = self._prepaid_ns = 0

    def _queued_ns(self, now_ns: int) -> int:
        queued_ns = sum(meter.queued_ns(now_ns) for meter in self._meters)
        recalled_ns = self._payment_to_recall_ns
        self._payment_to_recall_ns = 0
        # Waiting for the core counts as computing time only in a step: while data are transferred,
        # the link takes longer than the CPU.
        return 0 if self._moves_data else queued_ns - recalled_ns

    def _is_runnable(self) -> bool:
        return any(meter.is_runnable() for meter in self._meters)

    def _is_starved(self, now_ns: int, others: Collection[LimitedHost]) -> bool:
        """Return True if the host may wait for a grant because its slice was used up unseen.

        CPU time of processes that started and ended between two looks is not seen, nor the CPU
        time of a thread after it has ended. These are microseconds, but after them the kernel
        stops the other threads for the rest of the period.

        Testing for a runnable thread costs as much as all the rest of a look. A host without a
        family rarely ends a thread, so there the test runs only as often as the loss can be made
        up for, or as the host is held back for a slice anyway.
        """
        if not self.gate.starves or now_ns < self._ask_again_ns:
            return False
        for meter in self._meters:
            meter.look_for_threads(now_ns)
        if not self._is_runnable():
            self._without_core_ns = 0
            hold_ns = min(int(self.gate.slice_ns * self.ledger.slow_by), _LONGEST_UNSEEN_NS)
            self._ask_again_ns = 0 if self._family else now_ns + max(_UNSEEN_NS, hold_ns)
            return False
        self._without_core_ns = self._without_core_ns or now_ns
        waited_ns = now_ns - self._without_core_ns
        # The other reason for waiting is another host that computes, and no host computes for long
        # at a time.
        free_ns = now_ns - max((other.ran_ns for other in others if other is not self), default=0)
        # With many hosts on a core, a host may wait for the turns of all others.
        surely_ns = _SURELY_STARVED_NS + _TURN_NS * sum(other.needs_looks for other in others)
        return waited_ns > surely_ns or min(waited_ns, free_ns) > _STARVED_NS

    def _relieve(self, now_ns: int) -> int:
        """Enter CPU time that was used unseen, unless other hosts hold the core.

        The unseen time is the rest of the slice.

        Distinguishing the two cases takes another slice. A family uses up that slice unseen in the
        same way while the host is held back. Without a family, little was unseen and it was not
        training, so it is forgiven.
        """
        self._without_core_ns = 0
        left_ns = max(self.gate.slice_ns - self.ledger.used_ns, 0)
        if not self.gate.was_stopped() or not self._family:
            self.ledger.used_ns = 0
            return self._next_idle_look_ns(now_ns)
        self._prepaid_ns = self.gate.slice_ns
        self.ledger.owed_ns += (left_ns + self._prepaid_ns) * self.ledger.slow_by
        self.ledger.used_ns = self.gate.slice_ns
        due_ns = self._collect(now_ns)
        if not self._held_since_ns:
            self._refund(self._prepaid_ns)
        return due_ns

    def _refund(self, cpu_ns: int) -> None:
        """Take back a prepaid charge: the CPU time was not used, or was charged when seen."""
        self._prepaid_ns -= cpu_ns
        self.ledger.owed_ns -= cpu_ns * self.ledger.slow_by

    def _adopt(self, now_ns: int) -> None:
        """Hold the children of the host's processes; their CPU time since birth counts too.

        A child that lived for less than the interval between two calls is not seen.
        """
        self._family_seen_ns = now_ns
        for pid in self.gate.descendants({meter.pid for meter in self._meters}):
            meter = ProcessMeter(pid, from_birth=True)
            if meter.ended:
                meter.close()
                continue
            self.gate.admit(pid)
            self._meters.append(meter)
            if self._held_since_ns:
                self.gate.hold()

    def _forget_ended(self, now_ns: int) -> None:
        if self._family:
            self._adopt(now_ns)
        for meter in self._meters:
            if meter.ended:
                meter.close()
                efficiency = self._efficiencies.pop(meter.pid, None)
                if efficiency is not None:
                    efficiency.close()
        self._meters = [meter for meter in self._meters if not meter.ended]


class Limiter:
    """All hosts that one limiter process controls.

    Each host has its own time of the next look. So the cost grows with the hosts that compute, not
    with the product of all hosts and all wake-ups.
    """

    def __init__(
        self, hosts: Mapping[str, LimitedHost], control: Connection, pulse: PulseCounter
    ) -> None:
        self._hosts = hosts
        self._control = control
        self._pulse = pulse
        now_ns = time.monotonic_ns()
        self._looked_ns = dict.fromkeys(hosts, now_ns)
        self._due_ns = dict.fromkeys(hosts, _WITHOUT_END_NS)

    def run(self) -> int:
        """Hold the hosts to their shares until the controller disconnects; return status 0."""
        waiting = [self._control.fileno()]
        while True:
            due_ns = self.look(time.monotonic_ns())
            sleep_s = (
                None if due_ns == _WITHOUT_END_NS else max(due_ns - time.monotonic_ns(), 0) / 1e9
            )
            # A request ends the sleep early.
            requests = select.select(waiting, (), (), sleep_s)[0]
            now_ns = time.monotonic_ns()
            self._pulse.beat(now_ns, now_ns - due_ns)
            if requests and not self._answer():
                return 0

    def look(self, now_ns: int) -> int:
        """Look at every host that is due, and return the time of the next look."""
        all_hosts, due, soon_ns = self._hosts.values(), self._due_ns, now_ns + _EARLY_WAKE_NS
        for name, due_ns in due.items():
            if due_ns > soon_ns:
                continue
            elapsed_ns, self._looked_ns[name] = now_ns - self._looked_ns[name], now_ns
            host = self._hosts[name]
            next_ns = host.look(now_ns, elapsed_ns, all_hosts)
            # Assigning to an existing key is allowed during the iteration.
            due[name] = next_ns if host.needs_looks else _WITHOUT_END_NS
        return min(due.values(), default=_WITHOUT_END_NS)

    def _answer(self) -> bool:
        try:
            request = self._control.recv()
        except (EOFError, ConnectionResetError):
            return False
        host = self._hosts[request.host]
        # The request ends the current interval: until now the host may have been held back.
        self._looked_ns[request.host] = self._due_ns[request.host] = time.monotonic_ns()
        try:
            if isinstance(request, Attach):
                host.attach(
                    request.pid, time.monotonic_ns(), family=request.family, work=request.work
                )
            else:
                host.set_share(request.share, time.monotonic_ns())
        except OSError as error:
            self._control.send(str(error))
        else:
            self._control.send(time.monotonic_ns())
        return True


def run_limiter(
    hosts: Mapping[str, LimitedHost],
    control: Connection,
    pulse: PulseCounter,
    core: int | None,
    unrelated: Sequence[Connection],
) -> int:
    """Run a limiter process and return its exit status.

    Args:
        hosts: the hosts that it controls.
        control: connection that carries `Attach` and `SetShare` requests. Each is answered with
            the CLOCK_MONOTONIC ns at which it took effect, or with an error text.
        pulse: counter of its wake-ups.
        core: core to stay on, so that every wake-up makes the kernel account for the quotas of
            that core; None for any core.
        unrelated: inherited connections that the process must close.
    """
    for connection in unrelated:
        connection.close()
    # A garbage collection could delay the release of a host.
    gc.disable()
    # In a session of its own, the kernel's autogroups weigh it like a session, not like a host.
    os.setsid()
    if core is not None:
        os.sched_setaffinity(0, {core})
    realtime = become_punctual(PRIORITY)
    control.send(realtime)
    return Limiter(hosts, control, pulse).run()
