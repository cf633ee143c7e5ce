"""Controller of the limiter processes of a run: starts them, sends requests and ends them."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Literal, Self

from laggard.core.errors import EmulationError
from laggard.network_emulation.compute.cgroups import CgroupSet
from laggard.network_emulation.compute.efficiency import least_efficiency
from laggard.network_emulation.compute.host_counters import HostUse, host_tallies
from laggard.network_emulation.compute.limiter import (
    FULL_SHARE,
    Attach,
    LimitedHost,
    SetShare,
    run_limiter,
)
from laggard.network_emulation.compute.pulse import Pulse, PulseCounter
from laggard.network_emulation.compute.stop_signals import Gate, QuotaGate, SignalGate
from laggard.network_emulation.compute.warmth import keep_warm
from laggard.network_emulation.dilation import CORE_CAPACITY, compute_load
from laggard.network_emulation.forked import companion_is_alive, end_companion, fork_companion
from laggard.network_emulation.realtime import shorten_slice

Mechanism = Literal["cgroup-quota", "stop-signal"]

_ANSWER_TIMEOUT_S = 10.0
"""Real seconds to wait for a limiter's reply before it counts as hung."""
_CPUCLOCK_SCHED = 2
"""Clock type of a process's CPU clock in a clock id (clock_getcpuclockid(3))."""

_SLICE_NS = 200_000


def pin_to_core(pid: int, core: int) -> None:
    """Pin every thread of a process to a core and give it a short scheduling slice.

    With EEVDF (Linux 6.12 and later; sched_setattr(2)), a waking task with a shorter slice
    preempts other tasks at once. Otherwise it waits for up to a tick, which is longer than a phase
    of 1 ms. New threads inherit both settings.

    Args:
        pid: the process.
        core: number of the core.

    Raises:
        ProcessLookupError: if there is no such process (or FileNotFoundError).
        PermissionError: if the process belongs to another user.
    """
    for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are all that is needed
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(name), {core})
            shorten_slice(int(name), _SLICE_NS)


@dataclass(frozen=True)
class _Process:
    pid: int
    control: Connection
    hosts: tuple[str, ...]


class ShareController:
    """Controller that holds every host's processes to the host's share of one core.

    Use it as a context manager. It accepts calls from several threads.

    Attributes:
        mechanism: `cgroup-quota` if cgroups were prepared, else `stop-signal`.
        cpus: core of every host.
        realtime: True if all limiters have real-time priority.
    """

    def __init__(
        self, shares: Mapping[str, float], cgroups: CgroupSet | None, cpus: Mapping[str, int]
    ) -> None:
        self.mechanism: Mechanism = "stop-signal" if cgroups is None else "cgroup-quota"
        self.cpus = dict(cpus)
        self.realtime = True
        self._shares = dict(shares)
        self._cgroups = cgroups
        self._tallies = host_tallies(tuple(shares))
        self._pulses: list[PulseCounter] = []
        self._processes: list[_Process] = []
        self._attached: dict[int, int] = {}
        self._asking = threading.Lock()
        self._warmers = keep_warm(self.cpus.values())
        try:
            for core, hosts in self._by_limiter():
                self.realtime &= self._start(core, hosts)
        except BaseException:
            self.close()
            raise

    @property
    def shares(self) -> Mapping[str, float]:
        """Return the current share of every host, in real units."""
        return dict(self._shares)

    def attach(self, host: str, pid: int, *, family: bool = False, work: Path | None = None) -> int:
        """Hold a process, with all its threads, to the share and the core of a host.

        Args:
            host: a host that the controller was opened with.
            pid: process id in this process's PID namespace.
            family: also hold every process that it starts.
            work: file in which the process counts its work (`laggard.core.work_counter`). The
                share then limits the speed of that work, not only the CPU time.

        Returns:
            CLOCK_MONOTONIC nanoseconds at which the limit took effect.

        Raises:
            EmulationError: if the host or process does not exist, or the limiter has exited.
        """
        process = self._process_of(host)
        self._forget_ended()
        try:
            # A pidfd never refers to a later process with the same number, so `close` resumes the
            # right one.
            self._attached[pid] = os.pidfd_open(pid)
            pin_to_core(pid, self.cpus[host])
        except (ProcessLookupError, FileNotFoundError, PermissionError) as error:
            raise EmulationError(
                f"cannot limit process {pid} of {host} to its CPU share: {error}"
            ) from error
        if self._cgroups is not None:
            self._cgroups.hosts[host].admit(pid)
        with self._asking:
            return _send_request(process, Attach(host, pid, family, work))

    def set_share(self, host: str, share: float) -> int:
        """Change the share of a host, also while it computes.

        Args:
            host: a host that the controller was opened with.
            share: real fraction of one core, above 0 and at most 1; a host with 1 is not held
                back.

        Returns:
            CLOCK_MONOTONIC nanoseconds at which the share took effect.

        Raises:
            EmulationError: if the host does not exist, the share is out of range or the limiter
                has exited.
        """
        _require_share(host, share)
        with self._asking:
            effective_ns = _send_request(self._process_of(host), SetShare(host, share))
        self._shares[host] = share
        return effective_ns

    def least_efficiency(self, host: str) -> float:
        """Return the lower bound of a host's efficiency; 0 for a host that is not held back.

        See `efficiency.least_efficiency`.
        """
        return (
            0.0
            if self._shares[host] >= FULL_SHARE
            else least_efficiency(self._shares[host], self._fullness(host))
        )

    def uses(self) -> Mapping[str, HostUse]:
        """Return the computing time of every host since the controller was opened."""
        return {host: tally.read() for host, tally in self._tallies.items()}

    def pulses(self) -> tuple[Pulse, ...]:
        """Return the pulse of every limiter."""
        return tuple(pulse.read() for pulse in self._pulses)

    def cpu_s(self) -> float:
        """Return the CPU seconds that all limiters have used so far."""
        return sum(
            # This expression is how Linux encodes a process's CPU clock as a clock id.
            time.clock_gettime((~process.pid << 3) | _CPUCLOCK_SCHED)
            for process in self._processes
        )

    def check_alive(self) -> None:
        """Raise an error if a limiter has exited.

        Raises:
            EmulationError: if a limiter has exited.
        """
        for process in self._processes:
            if not companion_is_alive(process.pid):
                raise _make_exit_error(process.pid)

    def close(self) -> None:
        """End the limiters and release every process."""
        for process in self._processes:
            process.control.close()
            end_companion(process.pid)
        self._processes.clear()
        for warmer in self._warmers:
            end_companion(warmer)
        self._warmers = ()
        # Lift the limits only after the limiters have ended: a living limiter would hold its hosts
        # again.
        for group in self._cgroups.hosts.values() if self._cgroups else ():
            os.pwrite(group.quota, group.unlimited, 0)
        for descriptor in self._attached.values():
            with suppress(ProcessLookupError):  # the process has ended already
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            os.close(descriptor)
        self._attached.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _by_limiter(self) -> list[tuple[int | None, tuple[str, ...]]]:
        """Return the core (None for any) and the hosts of each limiter.

        The kernel accounts for a quota only on its own core, so quotas need one limiter per core.
        One limiter is enough for stop signals.
        """
        if self._cgroups is None:
            return [(None, tuple(self._shares))]
        cores = sorted({self.cpus[host] for host in self._shares})
        return [
            (core, tuple(host for host in self._shares if self.cpus[host] == core))
            for core in cores
        ]

    def _start(self, core: int | None, hosts: tuple[str, ...]) -> bool:
        limited = {
            host: LimitedHost(
                self._shares[host], self._gate(host), self._tallies[host], self._fullness(host)
            )
            for host in hosts
        }
        ours, theirs = Pipe()
        # The fork inherits our ends of all pipes. It must close them: a limiter ends when its pipe
        # does, which needs every copy of the other end to be closed.
        unrelated = [ours, *(process.control for process in self._processes)]
        pulse = PulseCounter()
        self._pulses.append(pulse)
        pid = fork_companion(
            "laggard-limiter", lambda: run_limiter(limited, theirs, pulse, core, unrelated)
        )
        theirs.close()
        self._processes.append(_Process(pid, ours, hosts))
        return bool(_receive_reply(ours))

    def _fullness(self, host: str) -> float:
        """Return the planned load of a host's core, divided by the core's capacity."""
        return (
            sum(
                compute_load(self._shares[each])
                for each in self._shares
                if self.cpus[each] == self.cpus[host]
            )
            / CORE_CAPACITY
        )

    def _gate(self, host: str) -> Gate:
        return SignalGate() if self._cgroups is None else QuotaGate(self._cgroups.hosts[host])

    def _forget_ended(self) -> None:
        waiting = select.poll()
        for descriptor in self._attached.values():
            waiting.register(descriptor, select.POLLIN)
        # A pidfd becomes readable when its process ends (pidfd_open(2)).
        ended = {descriptor for descriptor, _ in waiting.poll(0)}
        for descriptor in ended:
            os.close(descriptor)
        self._attached = {pid: kept for pid, kept in self._attached.items() if kept not in ended}

    def _process_of(self, host: str) -> _Process:
        for process in self._processes:
            if host in process.hosts:
                return process
        known = ", ".join(sorted(self._shares)[:5])
        raise EmulationError(
            f"{host}: unknown host; the controller of CPU shares was opened with {known}"
        )


def open_shares(
    shares: Mapping[str, float], cgroups: CgroupSet | None, cpus: Mapping[str, int]
) -> ShareController:
    """Start to hold hosts to their shares.

    Args:
        shares: real (dilated) fraction of one core for every host, above 0 and at most 1.
        cgroups: result of `prepare_cgroups`, called outside the sandbox; None uses stop signals.
        cpus: core of every host.

    Raises:
        EmulationError: if a share is out of range, or a host has no core or cgroup.
    """
    for host, share in shares.items():
        _require_share(host, share)
        if host not in cpus or (cgroups is not None and host not in cgroups.hosts):
            raise EmulationError(
                f"{host} has a CPU share but no core or no cgroup; pass the same hosts to"
                " plan_cpus, prepare_cgroups and open_shares"
            )
    return ShareController(shares, cgroups, cpus)


def _require_share(host: str, share: float) -> None:
    if not 0 < share <= 1:
        raise EmulationError(
            f"{host}: a CPU share of {share:g} cores is out of range; it must be greater than 0 and"
            " at most 1"
        )


def _send_request(process: _Process, request: Attach | SetShare) -> int:
    try:
        process.control.send(request)
    except OSError as error:
        raise _make_exit_error(process.pid) from error
    answer = _receive_reply(process.control, process.pid)
    if isinstance(answer, str):
        raise EmulationError(f"{request.host}: the CPU share cannot be applied: {answer}")
    return answer


def _receive_reply(control: Connection, pid: int = 0) -> int | str:
    try:
        if not control.poll(_ANSWER_TIMEOUT_S):
            raise EmulationError(
                f"the limiter of CPU shares has not answered within {_ANSWER_TIMEOUT_S:g} s"
            )
        answer: int | str = control.recv()
    except (EOFError, OSError) as error:
        raise _make_exit_error(pid) from error
    return answer


def _make_exit_error(pid: int) -> EmulationError:
    return EmulationError(
        f"the limiter of CPU shares (process {pid}) has exited; see its error output on stderr"
    )
