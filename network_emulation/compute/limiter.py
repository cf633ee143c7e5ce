"""The process that keeps hosts to their shares: it looks, enters what it saw into their ledgers,
and holds them back.

It sleeps until the next moment at which something can be due: a slice used up, a host to be let go,
or the next look at idle hosts. Everything here runs a few thousand times a second, in a process of
its own, forked from the controller.
"""

from __future__ import annotations

import gc
import os
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from laggard.core.work_counter import WorkCounter
from laggard.network_emulation.compute.efficiency import Efficiency
from laggard.network_emulation.compute.host_counters import HostCounters
from laggard.network_emulation.compute.ledger import CATCH_UP_NS, Ledger
from laggard.network_emulation.compute.meter import ProcessMeter
from laggard.network_emulation.compute.stop_signals import Gate
from laggard.network_emulation.dilation import compute_load
from laggard.network_emulation.realtime import become_punctual

PRIORITY = 10
"""SCHED_FIFO priority; below the link emulator's, whose work is more urgent and as short."""

FULL_SHARE = 0.999
"""From here on a host is not held back: one whole core is what pinning alone gives."""

SLICE_OF_BURST = 1 / 16
"""A slice is at most this part of what a host has computed since it last idled: a phase's end is
that exact, and a long phase is not cut into more pieces than it takes, each of which begins with
cold caches."""

LONGEST_SLICE_NS = 5_000_000

_SHORTEST_HOLD_NS = 200_000
_SHORTEST_SLEEP_NS = 50_000
_EARLY_WAKE_NS = 20_000
_ROUNDING_NS = 5_000
_SETTLING_NS = 100_000
_WATCH_NS = 5_000_000
_FAMILY_NS = 2_000_000
_STARVED_NS = 1_000_000
_SURELY_STARVED_NS = 20_000_000
_UNSEEN_NS = CATCH_UP_NS
_WITHOUT_END_NS = 1 << 62


@dataclass(frozen=True)
class Attach:
    """Hold this process of a host to the host's share; with `family`, whatever it starts too; with
    `work`, by the work it counts there.
    """

    host: str
    pid: int
    family: bool = False
    work: Path | None = None


@dataclass(frozen=True)
class SetShare:
    """Give a host another share."""

    host: str
    share: float


class LimitedHost:
    """One host: its processes, its account, and whether it is held back now."""

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
        """Whether there is anything to hold back, or to see kept from its core."""
        return bool(self._meters)

    def attach(
        self, pid: int, now_ns: int, *, family: bool = False, work: Path | None = None
    ) -> None:
        """Hold one more process; with `family`, from now on whatever the host's processes start
        too; `work` counts what it does.
        """
        self._free(now_ns)
        if work is not None:
            self._efficiencies[pid] = Efficiency(
                WorkCounter(work), self.ledger.share, self._fullness
            )
        self._family |= family
        if not self._meters:  # what processes now gone owed, or had waited, is not this one's
            self.ledger = Ledger(self.ledger.share)
        self.gate.admit(pid)
        self._meters.append(ProcessMeter(pid))
        self._apply(now_ns)

    def set_share(self, share: float, now_ns: int) -> None:
        """Another share from now on."""
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

    def look(self, now_ns: int, elapsed_ns: int, others: Iterable[LimitedHost] = ()) -> int:
        """See what the host did in the last `elapsed_ns`; hold it back or let it go.

        Args:
            now_ns: the time.
            elapsed_ns: since the last look.
            others: all hosts that may have the core.

        Returns:
            When to look again at the latest.
        """
        if not self._limited:
            if now_ns < self._watched_ns + _WATCH_NS:
                return self._watched_ns + _WATCH_NS
            elapsed_ns, self._watched_ns = now_ns - self._watched_ns, now_ns
        if self._family and now_ns - self._family_seen_ns >= _FAMILY_NS:
            self._adopt(now_ns)
        used = self._used()
        if used is None:
            return self._forget_ended(now_ns)
        cpu_ns, work_ns = used
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
                else now_ns + self.gate.idle_ns
            )
        self.ran_ns = now_ns
        self._without_core_ns = 0
        return self._collect(now_ns)

    def _used(self) -> tuple[int, float] | None:
        """CPU time used since the last look, and what it was worth at full speed; None where a
        process has ended.
        """
        cpu_ns, work_ns = 0, 0.0
        self._moves_data = False
        for meter in self._meters:
            used_ns = meter.cpu_ns()
            if meter.ended:
                return None
            cpu_ns += used_ns
            efficiency = self._efficiencies.get(meter.pid)
            # A core that is the host's alone has no other speed than its own.
            if efficiency is None or not self._limited:
                work_ns += used_ns
            elif used_ns:
                self.ledger.correct(efficiency.charge_uncounted())
                worth_ns = efficiency.charge(used_ns)
                self._moves_data |= not worth_ns
                work_ns += worth_ns or used_ns * self.ledger.share
        return cpu_ns, work_ns

    def _note(self, work_ns: float) -> None:
        """Tell what happened to whoever looks at the tally."""
        ledger = self.ledger
        self._tally.add(work_ns / ledger.share, ledger.lost_ns, ledger.owed_ns)
        ledger.lost_ns = 0.0

    def _collect(self, now_ns: int) -> int:
        ledger, gate = self.ledger, self.gate
        used_up = ledger.used_ns >= gate.slice_ns - _ROUNDING_NS
        if used_up or ledger.owed_ns > gate.early * gate.slice_ns * ledger.slow_by:
            # Held back while it does not want to compute, it would pay nothing: then the debt waits
            # for its next phase.
            if ledger.owed_ns > _SHORTEST_HOLD_NS and self._is_runnable():
                self._hold(now_ns)
                return min(self._free_again_ns, now_ns + _SETTLING_NS)
            if used_up:
                self._grant()
                ledger.used_ns = 0
        return now_ns + min(max(gate.slice_ns - ledger.used_ns, _SHORTEST_SLEEP_NS), gate.idle_ns)

    def _look_held(self, now_ns: int, cpu_ns: int, work_ns: float) -> int:
        if cpu_ns:
            self.ledger.observe_held(work_ns)
            self._refund(min(cpu_ns, self._prepaid_ns))
            self._note(work_ns)
        if now_ns < self._free_again_ns - _EARLY_WAKE_NS:
            # A quota that was not quite used up is settled, and the host stopped, when something
            # else gets the core: this process, which looks again, or the kernel's tick, which can
            # be milliseconds away.
            return (
                min(self._free_again_ns, now_ns + _SETTLING_NS) if cpu_ns else self._free_again_ns
            )
        self._free(now_ns)
        self._grant()
        return now_ns + min(self.gate.slice_ns, self.gate.idle_ns)

    def _grant(self) -> None:
        self.gate.grant(min(int(self._burst_ns * SLICE_OF_BURST), LONGEST_SLICE_NS))

    def _hold(self, now_ns: int) -> None:
        self.gate.hold()
        self._held_since_ns = now_ns
        self._free_again_ns = now_ns + int(self.ledger.owed_ns)

    def _free(self, now_ns: int) -> None:
        """Enter the time held back so far; the gate itself is the caller's to open."""
        if self._held_since_ns:
            held_ns = now_ns - self._held_since_ns
            self.ledger.pay(held_ns, self.gate.queue_remembers)
            self._payment_to_recall_ns += held_ns if self.gate.queue_remembers else 0
            self._held_since_ns = self._prepaid_ns = 0

    def _queued_ns(self, now_ns: int) -> int:
        queued_ns = sum(meter.queued_ns(now_ns) for meter in self._meters)
        recalled_ns = self._payment_to_recall_ns
        self._payment_to_recall_ns = 0
        # Waiting for the core counts as time that computing has taken; the way of data over a link
        # is longer than that of their bytes to it.
        return 0 if self._moves_data else queued_ns - recalled_ns

    def _is_runnable(self) -> bool:
        return any(meter.is_runnable() for meter in self._meters)

    def _is_starved(self, now_ns: int, others: Iterable[LimitedHost]) -> bool:
        """Whether the slice may be used up although not all of it was seen, so that the host waits
        for a grant in vain.

        What processes that came and went have used is not seen, nor what a thread uses after it has
        ended: microseconds, after which the kernel stops the others for the rest of its period. To
        ask whether anything is runnable costs as much as all the rest of a look; where there is no
        family, which seldom ends a thread, that is asked only as often as what is lost meanwhile
        can be made up for.
        """
        if not self.gate.starves or now_ns < self._ask_again_ns:
            return False
        for meter in self._meters:
            meter.look_for_threads(now_ns)
        if not self._is_runnable():
            self._without_core_ns = 0
            self._ask_again_ns = 0 if self._family else now_ns + _UNSEEN_NS
            return False
        self._without_core_ns = self._without_core_ns or now_ns
        waited_ns = now_ns - self._without_core_ns
        # Another host that computes is the other reason for waiting, and no host computes for long
        # at a time.
        free_ns = now_ns - max((other.ran_ns for other in others if other is not self), default=0)
        return waited_ns > _SURELY_STARVED_NS or min(waited_ns, free_ns) > _STARVED_NS

    def _relieve(self, now_ns: int) -> int:
        """Enter what was used unseen, the rest of the slice; or nothing, where something else has
        the core.

        To tell them apart takes another slice, which a family uses up unseen in the same way while
        the host is held back. Where there is none, little was unseen, and it was no training: it is
        forgiven.
        """
        self._without_core_ns = 0
        left_ns = max(self.gate.slice_ns - self.ledger.used_ns, 0)
        if not self.gate.was_stopped() or not self._family:
            self.ledger.used_ns = 0
            return now_ns + self.gate.idle_ns
        self._prepaid_ns = self.gate.slice_ns
        self.ledger.owed_ns += (left_ns + self._prepaid_ns) * self.ledger.slow_by
        self.ledger.used_ns = self.gate.slice_ns
        due_ns = self._collect(now_ns)
        if not self._held_since_ns:
            self._refund(self._prepaid_ns)
        return due_ns

    def _refund(self, cpu_ns: int) -> None:
        """Take back what was entered for CPU time that was not used, or is entered where it was
        seen.
        """
        self._prepaid_ns -= cpu_ns
        self.ledger.owed_ns -= cpu_ns * self.ledger.slow_by

    def _adopt(self, now_ns: int) -> None:
        """Hold the children, whose computing so far counts too; one that lived shorter than this
        comes round is not seen.
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

    def _forget_ended(self, now_ns: int) -> int:
        if self._family:
            self._adopt(now_ns)
        for meter in self._meters:
            if meter.ended:
                meter.close()
                efficiency = self._efficiencies.pop(meter.pid, None)
                if efficiency is not None:
                    efficiency.close()
        self._meters = [meter for meter in self._meters if not meter.ended]
        return now_ns


class Limiter:
    """All hosts that one limiter process looks after."""

    def __init__(self, hosts: Mapping[str, LimitedHost], control: Connection) -> None:
        self._hosts = hosts
        self._control = control
        self._looked_ns = time.monotonic_ns()

    def run(self) -> int:
        """Keep the hosts to their shares until the controller closes the connection."""
        waiting = [self._control.fileno()]
        while True:
            now_ns = time.monotonic_ns()
            due_ns = self._look(now_ns)
            sleep_s = (
                None if due_ns == _WITHOUT_END_NS else max(due_ns - time.monotonic_ns(), 0) / 1e9
            )
            if select.select(waiting, (), (), sleep_s)[0] and not self._answer():
                return 0

    def _look(self, now_ns: int) -> int:
        elapsed_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        due_ns = _WITHOUT_END_NS
        for host in self._hosts.values():
            if host.needs_looks:
                due_ns = min(due_ns, host.look(now_ns, elapsed_ns, self._hosts.values()))
        return due_ns

    def _answer(self) -> bool:
        try:
            request = self._control.recv()
        except (EOFError, ConnectionResetError):
            return False
        host = self._hosts[request.host]
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
    core: int | None,
    unrelated: Sequence[Connection],
) -> int:
    """Body of a limiter process.

    Args:
        hosts: the hosts it looks after.
        control: takes `Attach` and `SetShare`, answers each with the CLOCK_MONOTONIC ns when it was
            in effect or with an error.
        core: the core to stay on, so that every wake-up makes the kernel settle that core's quotas;
            None for any.
        unrelated: what the fork has inherited and must not keep open.
    """
    for connection in unrelated:
        connection.close()
    gc.disable()
    # of its own: the kernel's autogroups then weigh it like a whole session, not like one more host
    os.setsid()
    if core is not None:
        os.sched_setaffinity(0, {core})
    realtime = become_punctual(PRIORITY)
    control.send(realtime)
    return Limiter(hosts, control).run()
