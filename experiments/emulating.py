"""`laggard emulate`: only the continuum, up until its user ends it, for programs that the user
brings.
"""

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

from laggard.errors import EmulationError, FidelityError, InputError
from laggard.experiments.continuum import Continuum, bring_up
from laggard.experiments.control_socket import ControlSocket, Reply, Request
from laggard.experiments.controller import require_fidelity, run_tasks
from laggard.experiments.emulation_documents import Up, link_document
from laggard.experiments.guarding import TimedSlip, Watch, late_changes, require_faithful
from laggard.experiments.job import Job
from laggard.experiments.recording import record_failure
from laggard.experiments.results import JsonValue
from laggard.experiments.runner import Options, enter, settle
from laggard.experiments.scenario import Scenario
from laggard.experiments.training import write_counters, write_events
from laggard.hosts import Host, select
from laggard.layers_services.local.joining import offered
from laggard.network_emulation.dynamics import EventRecord, Scheduler, peak_rates
from laggard.network_emulation.links import Constraint, Pair
from laggard.network_emulation.live_links import (
    LiveLink,
    Look,
    group_links,
    live_links,
    round_trip_probes,
)
from laggard.network_emulation.measure import Endpoint
from laggard.network_emulation.prober import Prober
from laggard.run_schema import RunRecord

_LOOK_S = 0.2
_MEANWHILE = "it was up"


@dataclass(frozen=True)
class Teller:
    """Whom to tell, inside the sandbox.

    Attributes:
        up: called as soon as the continuum is up.
        slipped: called with whatever has just slipped, as often as something does.
    """

    up: Callable[[Up], None]
    slipped: Callable[[Sequence[TimedSlip]], None]


def emulate(
    scenario: Scenario, options: Options, teller: Teller, for_s: float | None = None
) -> tuple[RunRecord, Path]:
    """Bring the continuum of a scenario up, verify it, and keep it until an interrupt or for a
    while.

    The timed events begin when it is up, and so does the guard.

    Args:
        scenario: as loaded.
        options: how to run it.
        teller: whom to tell meanwhile.
        for_s: how long to keep it, in virtual seconds; None until SIGINT, SIGTERM or SIGHUP.

    Returns:
        The final record, and the run folder, with `fidelity.json`, `guard.json`, `events.parquet`
        and `counters.json`.

    Raises:
        PrerequisiteError: this machine lacks something; nothing was started.
        RunFolderError: the run folder cannot be made, or the sandbox would not see it.
    """

    def conclude(job: Job, status: int) -> None:
        settle(job, status)
        job.journal.display.close()

    return enter(scenario, options, lambda job: _keep_up(job, teller, for_s), conclude)


def _keep_up(job: Job, teller: Teller, for_s: float | None) -> int:
    """Body of the sandbox; whatever happens is in the run's record."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with bring_up(job, lambda: None) as continuum, Prober(_endpoints(job, continuum)) as prober:
            require_fidelity(job.folder, continuum.checks)
            run_tasks(job, "prepare")
            run_tasks(job, "launch")
            slips = _Emulation(job, continuum, prober, teller).keep(for_s)
            run_tasks(job, "finalize")
            require_faithful(job.folder, slips, _MEANWHILE)
        job.journal.update(status="done")
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last place that can still put a defect on record
        return record_failure(job.journal, error)
    finally:
        job.journal.display.close()
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _endpoints(job: Job, continuum: Continuum) -> dict[str, Endpoint]:
    return {
        host.name: Endpoint(continuum.namespaces.path(host.name), host.address)
        for host in job.scenario.hosts
    }


@dataclass
class _Emulation:
    """A continuum that is up, its events, and what is answered about it."""

    job: Job
    continuum: Continuum
    prober: Prober
    teller: Teller
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

    def keep(self, for_s: float | None) -> tuple[TimedSlip, ...]:
        """Apply the events, answer requests and tell of slips until the end; returns all slips."""
        scenario, dilation = self.job.scenario, self.job.dilation
        before = self.continuum.links.counters()
        watch = Watch(self.continuum, peak_rates(scenario.links.pairs, scenario.changes), dilation)
        with self.job.journal.stage("up"), ControlSocket(self.job.folder) as control, watch:
            zero_ns = time.monotonic_ns()
            self._last = Look(zero_ns, before)
            ends_ns = None if for_s is None else zero_ns + round(dilation.real_s(for_s) * 1e9)
            self._scheduler.start(zero_ns)
            events: tuple[EventRecord, ...] = ()
            try:
                self.teller.up(self._up())
                with suppress(KeyboardInterrupt):
                    while ends_ns is None or time.monotonic_ns() < ends_ns:
                        self._serve(control)
                        self._tell_slips(watch, zero_ns)
            finally:
                events = self._scheduler.stop()
                write_events(self.job.folder, events)
                write_counters(self.job.folder, self.continuum.links, before)
        return (*watch.slips(zero_ns), *late_changes(events, zero_ns, dilation))

    def _up(self) -> Up:
        record, scenario = self.job.journal.record, self.job.scenario
        return Up(
            record.id,
            self.job.folder,
            scenario.hosts,
            scenario.shares,
            self.job.dilation.factor,
            record.warnings,
        )

    def _serve(self, control: ControlSocket) -> None:
        control.serve(_LOOK_S, self._answer)
        self.continuum.links.check_alive()
        self.continuum.shares.check_alive()
        if self._scheduler.failure is not None:
            raise EmulationError(
                f"a dynamic change could not be applied: {self._scheduler.failure}"
            )

    def _tell_slips(self, watch: Watch, zero_ns: int) -> None:
        """Put down all that has slipped, in case that this process does not live to its end, and
        tell of what has just done so.
        """
        fresh = watch.news(zero_ns)
        if not fresh:
            return
        try:
            require_faithful(self.job.folder, watch.known(zero_ns), _MEANWHILE)
        except FidelityError as error:
            self.job.journal.update(error=str(error))
        self.teller.slipped(fresh)

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
        """Hold a process to the host's share, unless it is a shell that would take every stop
        signal for a Ctrl-Z.
        """
        shares = self.continuum.shares
        if pid <= 0:
            raise InputError(
                "a process outside the emulation is not held to a share — run it with `laggard ssh`"
            )
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
