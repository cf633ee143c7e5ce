"""Starts, steers and ends the limiter processes of a run."""

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
from laggard.network_emulation.compute.stop_signals import Gate, QuotaGate, SignalGate
from laggard.network_emulation.compute.warmth import keep_warm
from laggard.network_emulation.dilation import CORE_CAPACITY, compute_load
from laggard.network_emulation.forked import companion_is_alive, end_companion, fork_companion
from laggard.network_emulation.realtime import shorten_slice

Mechanism = Literal["cgroup-quota", "stop-signal"]

_ANSWER_TIMEOUT_S = 10.0
_CPUCLOCK_SCHED = 2


_SLICE_NS = 200_000


def pin_to_core(pid: int, core: int) -> None:
    """Pin every thread of a process to a core, and have it preempt what is not of the continuum
    when it wakes.

    EEVDF (Linux 6.12 and later; sched_setattr(2)) lets a waking task with a shorter slice preempt
    at once, where it would otherwise wait for up to a tick: longer than a phase of 1 ms takes. New
    threads inherit both.

    Raises:
        ProcessLookupError: no such process (or FileNotFoundError).
        PermissionError: not this user's.
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
    """Holds the processes of every host to the host's share of one core; use it as a context
    manager.

    Several threads may ask at the same time.

    Attributes:
        mechanism: `cgroup-quota` where cgroups were prepared, else `stop-signal`.
        cpus: the core of every host.
        realtime: whether the limiters have real-time priority.
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
        """The share that every host has now, in real units."""
        return dict(self._shares)

    def attach(self, host: str, pid: int, *, family: bool = False, work: Path | None = None) -> int:
        """Hold a process, with all its threads, to the share of a host, and pin it to the host's
        core.

        Args:
            host: a host that the controller was opened with.
            pid: the process, as this process's PID namespace counts.
            family: hold whatever it starts, too.
            work: where the process counts its work (`laggard.core.work_counter`); the share is then
                one of its speed, and not only of the core.

        Returns:
            CLOCK_MONOTONIC nanoseconds when it was in effect.

        Raises:
            EmulationError: no such host or process, or the limiter is gone.
        """
        process = self._process_of(host)
        self._forget_ended()
        try:
            self._attached[pid] = os.pidfd_open(pid)
            pin_to_core(pid, self.cpus[host])
        except (ProcessLookupError, FileNotFoundError, PermissionError) as error:
            raise EmulationError(
                f"process {pid} of {host} cannot be held to a share: {error}"
            ) from error
        if self._cgroups is not None:
            self._cgroups.hosts[host].admit(pid)
        with self._asking:
            return _send_request(process, Attach(host, pid, family, work))

    def set_share(self, host: str, share: float) -> int:
        """Give a host another share, also while it computes.

        Args:
            host: a host that the controller was opened with.
            share: fraction of one core, above 0 and at most 1, real; 1 is not held back.

        Returns:
            CLOCK_MONOTONIC nanoseconds when it was in effect.

        Raises:
            EmulationError: no such host, no such share, or the limiter is gone.
        """
        _require_share(host, share)
        with self._asking:
            effective_ns = _send_request(self._process_of(host), SetShare(host, share))
        self._shares[host] = share
        return effective_ns

    def least_efficiency(self, host: str) -> float:
        """What CPU time is taken to be worth at least on a host; 0 where nothing holds it back."""
        return (
            0.0
            if self._shares[host] >= FULL_SHARE
            else least_efficiency(self._shares[host], self._fullness(host))
        )

    def uses(self) -> Mapping[str, HostUse]:
        """How every host has computed since the controller was opened."""
        return {host: tally.read() for host, tally in self._tallies.items()}

    def cpu_s(self) -> float:
        """CPU seconds that the limiters have used so far, together."""
        return sum(
            time.clock_gettime((~process.pid << 3) | _CPUCLOCK_SCHED) for process in self._processes
        )

    def check_alive(self) -> None:
        """Do nothing while shares are being held.

        Raises:
            EmulationError: a limiter is gone.
        """
        for process in self._processes:
            if not companion_is_alive(process.pid):
                raise _make_exit_error(process.pid)

    def close(self) -> None:
        """End the limiters and let every process go."""
        for process in self._processes:
            process.control.close()
            end_companion(process.pid)
        self._processes.clear()
        for warmer in self._warmers:
            end_companion(warmer)
        self._warmers = ()
        for group in self._cgroups.hosts.values() if self._cgroups else ():
            os.pwrite(group.quota, group.unlimited, 0)
        for descriptor in self._attached.values():
            with suppress(ProcessLookupError):  # it has ended, as most have by now
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            os.close(descriptor)
        self._attached.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _by_limiter(self) -> list[tuple[int | None, tuple[str, ...]]]:
        """One limiter per core for quotas, which the kernel settles on that core only; one for all
        that it may stop.
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
        unrelated = [ours, *(process.control for process in self._processes)]
        pid = fork_companion(
            "laggard-limiter", lambda: run_limiter(limited, theirs, core, unrelated)
        )
        theirs.close()
        self._processes.append(_Process(pid, ours, hosts))
        return bool(_receive_reply(ours))

    def _fullness(self, host: str) -> float:
        """What the hosts of a host's core are planned to need of it."""
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
        ended = {descriptor for descriptor, _ in waiting.poll(0)}
        for descriptor in ended:
            os.close(descriptor)
        self._attached = {pid: kept for pid, kept in self._attached.items() if kept not in ended}

    def _process_of(self, host: str) -> _Process:
        for process in self._processes:
            if host in process.hosts:
                return process
        known = ", ".join(sorted(self._shares)[:5])
        raise EmulationError(f"{host}: no such host has a share; the hosts are {known}")


def open_shares(
    shares: Mapping[str, float], cgroups: CgroupSet | None, cpus: Mapping[str, int]
) -> ShareController:
    """Start holding hosts to their shares.

    Args:
        shares: fraction of one core that every host is to compute with, above 0 and at most 1, real
            (dilated).
        cgroups: as `prepare_cgroups` made them outside the sandbox; None falls back on stop
            signals.
        cpus: the core of every host.

    Raises:
        EmulationError: a share out of range, a host without a core or cgroup.
    """
    for host, share in shares.items():
        _require_share(host, share)
        if host not in cpus or (cgroups is not None and host not in cgroups.hosts):
            raise EmulationError(
                f"{host} has a share but no core or cgroup; plan and prepare the same hosts"
            )
    return ShareController(shares, cgroups, cpus)


def _require_share(host: str, share: float) -> None:
    if not 0 < share <= 1:
        raise EmulationError(
            f"{host}: a share of {share:g} of one core cannot be held; give more than 0 and at"
            " most 1"
        )


def _send_request(process: _Process, request: Attach | SetShare) -> int:
    try:
        process.control.send(request)
    except OSError as error:
        raise _make_exit_error(process.pid) from error
    answer = _receive_reply(process.control, process.pid)
    if isinstance(answer, str):
        raise EmulationError(f"{request.host}: its share cannot be held: {answer}")
    return answer


def _receive_reply(control: Connection, pid: int = 0) -> int | str:
    try:
        if not control.poll(_ANSWER_TIMEOUT_S):
            raise EmulationError(
                f"the limiter of CPU shares has not answered for {_ANSWER_TIMEOUT_S:g} s"
            )
        answer: int | str = control.recv()
    except (EOFError, OSError) as error:
        raise _make_exit_error(pid) from error
    return answer


def _make_exit_error(pid: int) -> EmulationError:
    return EmulationError(
        f"the limiter of CPU shares (process {pid}) is gone; its output on stderr says why"
    )
