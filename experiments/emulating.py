"""`laggard emulate`: only the continuum, up until its user ends it, for programs that the user brings."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from laggard.errors import EmulationError, InputError
from laggard.experiments.continuum import Continuum, bring_up
from laggard.experiments.control_socket import ControlSocket, Reply, Request
from laggard.experiments.controller import require_fidelity, run_tasks
from laggard.experiments.emulation_documents import Up, link_document
from laggard.experiments.job import Job
from laggard.experiments.recording import record_failure
from laggard.experiments.results import JsonValue
from laggard.experiments.runner import Options, enter, settle
from laggard.experiments.scenario import Scenario
from laggard.experiments.training import write_counters, write_events
from laggard.hosts import Host, select
from laggard.layers_services.local.joining import offered
from laggard.network_emulation.dynamics import Scheduler
from laggard.network_emulation.links import Constraint, Pair
from laggard.network_emulation.live_links import LiveLink, Look, group_links, live_links, round_trip_probes
from laggard.network_emulation.measure import Endpoint
from laggard.network_emulation.prober import Prober
from laggard.run_schema import RunRecord

_LOOK_S = 0.2


def emulate(
    scenario: Scenario, options: Options, told: Callable[[Up], None], for_s: float | None = None
) -> tuple[RunRecord, Path]:
    """Bring the continuum of a scenario up, verify it, and keep it until an interrupt or for a while.

    The timed events begin when it is up.

    Args:
        scenario: as loaded.
        options: how to run it.
        told: called, inside the sandbox, as soon as it is up.
        for_s: how long to keep it, in virtual seconds; None until SIGINT, SIGTERM or SIGHUP.

    Returns:
        The final record, and the run folder, with `fidelity.json`, `events.parquet` and `counters.json`.

    Raises:
        PrerequisiteError: this machine lacks something; nothing was started.
        RunFolderError: the run folder cannot be made, or the sandbox would not see it.
    """

    def conclude(job: Job, status: int) -> None:
        settle(job, status)
        job.journal.display.close()

    return enter(scenario, options, lambda job: _keep_up(job, told, for_s), conclude)


def _keep_up(job: Job, told: Callable[[Up], None], for_s: float | None) -> int:
    """Body of the sandbox; whatever happens is in the run's record."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with bring_up(job, lambda: None) as continuum, Prober(_endpoints(job, continuum)) as prober:
            require_fidelity(job.folder, continuum.checks)
            run_tasks(job, "prepare")
            run_tasks(job, "launch")
            _Emulation(job, continuum, prober, told).keep(for_s)
            run_tasks(job, "finalize")
        job.journal.update(status="done")
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last place that can still put a defect on record
        return record_failure(job.journal, error)
    finally:
        job.journal.display.close()
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _endpoints(job: Job, continuum: Continuum) -> dict[str, Endpoint]:
    return {host.name: Endpoint(continuum.namespaces.path(host.name), host.address) for host in job.scenario.hosts}


@dataclass
class _Emulation:
    """A continuum that is up, its events, and what is answered about it."""

    job: Job
    continuum: Continuum
    prober: Prober
    told: Callable[[Up], None]
    _scheduler: Scheduler = field(init=False)
    _last: Look = field(init=False)

    def __post_init__(self) -> None:
        scenario, continuum = self.job.scenario, self.continuum
        self._scheduler = Scheduler(
            scenario.changes,
            continuum.links,
            continuum.shares,
            self.job.dilation,
            scenario.shares,
            scenario.links.pairs,
            continuum.drives,
            scenario.drives,
        )

    def keep(self, for_s: float | None) -> None:
        """Apply the events and answer requests until the end."""
        scenario, dilation = self.job.scenario, self.job.dilation
        before = self.continuum.links.counters()
        with self.job.journal.stage("up"), ControlSocket(self.job.folder) as control:
            zero_ns = time.monotonic_ns()
            self._last = Look(zero_ns, before)
            ends_ns = None if for_s is None else zero_ns + round(dilation.real_s(for_s) * 1e9)
            self._scheduler.start(zero_ns)
            try:
                record = self.job.journal.record
                self.told(Up(record.id, self.job.folder, scenario.hosts, scenario.shares, dilation.factor))
                with suppress(KeyboardInterrupt):
                    self._serve(control, ends_ns)
            finally:
                write_events(self.job.folder, self._scheduler.stop())
                write_counters(self.job.folder, self.continuum.links, before)

    def _serve(self, control: ControlSocket, ends_ns: int | None) -> None:
        while ends_ns is None or time.monotonic_ns() < ends_ns:
            control.serve(_LOOK_S, self._answer)
            self.continuum.links.check_alive()
            self.continuum.shares.check_alive()
            if self._scheduler.failure is not None:
                raise EmulationError(f"a dynamic change could not be applied: {self._scheduler.failure}")

    def _answer(self, request: Request, pid: int) -> Iterator[Reply]:
        if request.ask == "links":
            yield Reply({"links": [link_document(link) for link in self._links()]})
            return
        host = one_host(request.host, self.job.scenario.hosts)
        if request.ask == "enter":
            namespaces = self.continuum.namespaces
            with offered(namespaces.path(host.name), namespaces.uts_path(host.name)) as descriptors:
                content: dict[str, JsonValue] = {
                    "host": host.name,
                    "address": host.address,
                    "environment": self._environment(host),
                }
                yield Reply(content, descriptors)
        else:
            yield Reply({"held": self._hold(host, pid, interactive=request.interactive)})

    def _environment(self, host: Host) -> dict[str, JsonValue]:
        """What a command in the host sees besides the variables of whoever started it."""
        given: dict[str, JsonValue] = {"LAGGARD_HOST": host.name, "LAGGARD_ADDRESS": host.address}
        if host.ipv6:
            given["LAGGARD_IPV6"] = host.ipv6[0]
        return given | {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}

    def _hold(self, host: Host, pid: int, *, interactive: bool) -> bool:
        """Hold a process to the host's share, unless it is a shell that would take every stop signal for a Ctrl-Z."""
        shares = self.continuum.shares
        if pid <= 0:
            raise InputError("a process outside the emulation is not held to a share — run it with `laggard ssh`")
        if interactive and shares.mechanism == "stop-signal":
            return False
        shares.attach(host.name, pid, family=True)
        return True

    def _links(self) -> tuple[LiveLink, ...]:
        now, dilation = self._scheduler.constraints(), self.job.dilation

        def current(pair: Pair) -> Constraint:
            return now.get(pair, Constraint())

        groups = group_links(self.job.scenario.links, current)
        measured = self.prober.round_trips(round_trip_probes(groups, current, dilation))
        look = Look(time.monotonic_ns(), self.continuum.links.counters())
        last, self._last = self._last, look
        return live_links(groups, current, measured, last, look, dilation)


def one_host(pattern: str, hosts: Sequence[Host]) -> Host:
    """The one host that a user means by its name, or by a pattern that matches nothing else.

    Raises:
        InputError: it matches none, or several.
    """
    chosen = select(pattern, hosts)
    if len(chosen) == 1:
        return chosen[0]
    names = [host.name for host in chosen or hosts]
    rule = f"{len(chosen)} hosts match" if chosen else "no host matches"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise InputError(f"{pattern}: {rule}, and one is entered at a time — name one of {shown}")
