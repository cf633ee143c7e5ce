"""Emulation of only the continuum, for the user's programs: those of plays and of `laggard ssh`.

`laggard emulate` keeps it until its user ends it. `laggard run` of a scenario without a workload
ends it after the plays of `launch`, and a time that the user may add.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from laggard.core.errors import EmulationError, FidelityError, InputError
from laggard.core.hosts import Host, select_hosts
from laggard.core.node_values import is_node_path
from laggard.core.run_schema import RunRecord, StrategyRecord
from laggard.emulate.control_messages import ControlRequest, EnterReply, HoldReply, LinksReply
from laggard.emulate.control_socket import ControlReply, ControlSocket
from laggard.emulate.output import EmulationStatus, build_link_document
from laggard.layers_services.local.joining import open_namespaces
from laggard.layers_services.local.namespaces import HostNamespaces
from laggard.layers_services.local.provider import CONTROL_FOLDER_VARIABLE
from laggard.network_emulation.dynamics import EventRecord, Scheduler, peak_rates
from laggard.network_emulation.fidelity.live_links import (
    LiveLink,
    Look,
    group_links,
    live_links,
    round_trip_probes,
)
from laggard.network_emulation.fidelity.measure import ProbeEndpoint
from laggard.network_emulation.fidelity.prober import Prober
from laggard.network_emulation.forked import ForkedCall, start_forked
from laggard.network_emulation.link_plan import Constraint, Pair
from laggard.run.continuum import Continuum, open_continuum
from laggard.run.controller import has_stage, run_plays, run_workflow_stage
from laggard.run.fidelity_monitor import FidelityMonitorThread
from laggard.run.run_context import RunContext
from laggard.run.runner import RunOptions, finalize_record, run_in_sandbox
from laggard.run_folder.collect import report_untrained_run
from laggard.run_folder.counters import write_counters, write_events
from laggard.run_folder.fidelity_checks import record_fidelity, require_recorded_fidelity
from laggard.run_folder.fidelity_violations import (
    TimedViolation,
    find_late_changes,
    require_no_violations,
)
from laggard.run_folder.record import record_failure
from laggard.scenario.load import Scenario

_POLL_INTERVAL_S = 0.2
_ACTIVITY = "it was up"
_ENDING_S = 30.0
"""Time after the user's signal, which is the usual end of an emulation, to write its counters."""
_EXPERIMENT_ENDING_S = 3600.0
"""Time after the user's signal in which the plays of `finalize` fetch what there is so far."""


@dataclass(frozen=True)
class EmulationCallbacks:
    """Functions to call inside the sandbox while the emulation is running.

    Attributes:
        on_up: called as soon as the continuum is up
        on_violations: called with new fidelity violations, whenever there are any
    """

    on_up: Callable[[EmulationStatus], None]
    on_violations: Callable[[Sequence[TimedViolation]], None]


class Application(ABC):
    """Program that a run starts in its hosts, after the plays of `launch`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the stage in which it runs."""

    @abstractmethod
    def describe(self) -> StrategyRecord:
        """Return what the record of the run says of it."""

    @abstractmethod
    def run(self, context: RunContext, namespaces: HostNamespaces) -> None:
        """Run it to its end, in a process of its own inside the sandbox.

        Raises:
            LaggardError: it failed.
        """

    @abstractmethod
    def collect(self, context: RunContext) -> None:
        """Analyze what it left, outside the sandbox, and complete the record."""


def run_emulation(
    scenario: Scenario,
    options: RunOptions,
    callbacks: EmulationCallbacks,
    for_s: float | None = None,
) -> tuple[RunRecord, Path]:
    """Start and verify the continuum of a scenario and keep it for a time or until an interrupt.

    The timed events and the fidelity monitor start when the continuum is up.

    Args:
        scenario: the loaded scenario
        options: options of the run
        callbacks: functions that receive the status and the violations
        for_s: duration in virtual seconds; None keeps it until SIGINT, SIGTERM or SIGHUP

    Returns:
        The final record, and the run folder, with `fidelity.json`, `fidelity_violations.json`,
        `events.parquet` and `counters.json`.

    Raises:
        PrerequisiteError: this machine lacks something; nothing was started
        RunFolderError: the run folder cannot be created, or would be hidden in the sandbox
    """

    def finalize(context: RunContext, status: int) -> None:
        finalize_record(context, status)
        context.journal.display.close()

    return run_in_sandbox(
        scenario,
        options,
        lambda context: _run_in_sandbox(context, callbacks, for_s),
        finalize,
        _ENDING_S,
    )


def run_experiment(
    scenario: Scenario,
    options: RunOptions,
    for_s: float = 0.0,
    application: Application | None = None,
) -> tuple[RunRecord, Path]:
    """Run the plays of a scenario that trains nothing, on its verified continuum.

    The programs that `launch` starts are held to their host's CPU share. The timed events and the
    fidelity monitor start with `launch`. A signal ends `launch` or the time after it, and the plays
    of `finalize` still fetch what there is.

    Args:
        scenario: the loaded scenario
        options: options of the run
        for_s: virtual seconds between the end of `launch` and the begin of `finalize`
        application: program that runs after the plays of `launch`; None for none

    Returns:
        The final record, and the run folder, with its report.

    Raises:
        PrerequisiteError: this machine lacks something; nothing was started
        RunFolderError: the run folder cannot be created, or would be hidden in the sandbox
    """

    def finalize(context: RunContext, status: int) -> None:
        finalize_record(context, status)
        if application is None:
            report_untrained_run(context.journal)
        else:
            application.collect(context)
        context.journal.display.close()

    silent = EmulationCallbacks(lambda _: None, lambda _: None)
    return run_in_sandbox(
        scenario,
        replace(options, for_s=for_s),
        lambda context: _run_in_sandbox(
            context, silent, for_s, is_experiment=True, application=application
        ),
        finalize,
        _EXPERIMENT_ENDING_S,
    )


def _run_in_sandbox(
    context: RunContext,
    callbacks: EmulationCallbacks,
    for_s: float | None,
    *,
    is_experiment: bool = False,
    application: Application | None = None,
) -> int:
    """Run the emulation inside the sandbox and record every outcome in the run's record."""
    try:
        if application is not None:
            context.journal.update(strategy=application.describe())
        with (
            open_continuum(context, lambda: None) as continuum,
            Prober(_list_endpoints(context, continuum)) as prober,
        ):
            record_fidelity(context.folder, continuum.checks, context.fidelity)
            run_workflow_stage(context, "prepare")
            emulation = _Emulation(context, continuum, prober, callbacks, application)
            violations = emulation.run_until(for_s)
            run_workflow_stage(context, "finalize")
            if is_experiment:
                emulation.require_uninterrupted()
            context.journal.warn(require_no_violations(context.folder, violations, _ACTIVITY))
            require_recorded_fidelity(context.folder)
        if not is_experiment:
            context.journal.update(status="done")
    # Every failure is recorded here, since the record cannot be updated after the sandbox's end.
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        return record_failure(context.journal, error)
    finally:
        context.journal.display.close()
    return 0


def _list_endpoints(context: RunContext, continuum: Continuum) -> dict[str, ProbeEndpoint]:
    return {
        host.name: ProbeEndpoint(continuum.namespaces.path(host.name), host.address)
        for host in context.scenario.hosts
    }


@dataclass
class _Emulation:
    """Running continuum with its events; it answers requests."""

    context: RunContext
    continuum: Continuum
    prober: Prober
    callbacks: EmulationCallbacks
    application: Application | None = None
    _interrupt: KeyboardInterrupt | None = None
    _scheduler: Scheduler = field(init=False)
    _last_counters: Look = field(init=False)

    def __post_init__(self) -> None:
        scenario, continuum = self.context.scenario, self.continuum
        self._scheduler = Scheduler(
            scenario.changes,
            continuum.links,
            continuum.shares,
            self.context.dilation,
            scenario.shares,
            scenario.links.pairs,
            continuum.drives,
            scenario.drives,
        )

    def run_until(self, for_s: float | None) -> tuple[TimedViolation, ...]:
        """Run the plays of `launch`, apply events, answer requests and report violations.

        Args:
            for_s: virtual seconds after `launch`; None until the user's interrupt

        Returns:
            All violations.
        """
        scenario, dilation = self.context.scenario, self.context.dilation
        counters_before = self.continuum.links.counters()
        watch = FidelityMonitorThread(
            self.continuum, peak_rates(scenario.links.pairs, scenario.changes), dilation
        )
        # The plays are forked before this process has threads.
        with (
            ControlSocket(self.context.folder) as control,
            start_forked("laggard-launch", self._launch) as launched,
            watch,
        ):
            zero_ns = time.monotonic_ns()
            self._last_counters = Look(zero_ns, counters_before)
            # Time zero, as in training: events count from here, in virtual seconds.
            self._scheduler.start(zero_ns)
            events: tuple[EventRecord, ...] = ()

            def serve_until(is_over: Callable[[], bool]) -> None:
                while not is_over():
                    self._serve(control)
                    self._report_violations(watch, zero_ns)

            try:
                self._wait(serve_until, launched, for_s)
            finally:
                events = self._scheduler.stop()
                write_events(self.context.folder, events)
                write_counters(self.context.folder, self.continuum.links, counters_before)
        return (*watch.violations(zero_ns), *find_late_changes(events, zero_ns, dilation))

    def _launch(self) -> None:
        """Run plays and application in a process of its own, whose programs are held to shares."""
        os.environ[CONTROL_FOLDER_VARIABLE] = str(self.context.folder)
        run_plays(self.context, "launch")
        if self.application is not None:
            self.application.run(self.context, self.continuum.namespaces)

    def _wait(
        self,
        serve_until: Callable[[Callable[[], bool]], None],
        launched: ForkedCall[None],
        for_s: float | None,
    ) -> None:
        """Serve until the plays of `launch` have ended, and for the time after them."""
        journal = self.context.journal
        try:
            name = "workflow: launch" if self.application is None else self.application.name
            if has_stage(self.context, "launch") or self.application is not None:
                with journal.stage(name):
                    serve_until(launched.is_done)
                    launched.result()
            self.callbacks.on_up(self._create_status())
            real_ns = None if for_s is None else round(self.context.dilation.real_s(for_s) * 1e9)
            if real_ns != 0:
                with journal.stage("up", "" if for_s is None else f"for {for_s:g} s"):
                    ends_ns = None if real_ns is None else time.monotonic_ns() + real_ns
                    serve_until(lambda: ends_ns is not None and time.monotonic_ns() >= ends_ns)
        except KeyboardInterrupt as interrupt:
            self._interrupt = interrupt

    def require_uninterrupted(self) -> None:
        """Raise the user's interrupt that ended the emulation, if one did."""
        if self._interrupt is not None:
            raise self._interrupt

    def _create_status(self) -> EmulationStatus:
        record, scenario = self.context.journal.record, self.context.scenario
        return EmulationStatus(
            record.id,
            self.context.folder,
            scenario.hosts,
            scenario.shares,
            self.context.dilation.factor,
            record.warnings,
        )

    def _serve(self, control: ControlSocket) -> None:
        control.serve(_POLL_INTERVAL_S, self._handle_request)
        self.continuum.links.check_alive()
        self.continuum.shares.check_alive()
        if self._scheduler.failure is not None:
            raise EmulationError(f"a timed event could not be applied: {self._scheduler.failure}")

    def _report_violations(self, watch: FidelityMonitorThread, zero_ns: int) -> None:
        """Record all violations and report the new ones.

        They are recorded at once, because this process may be killed before its end.
        """
        new_violations = watch.poll_new(zero_ns)
        if not new_violations:
            return
        try:
            require_no_violations(self.context.folder, watch.known(zero_ns), _ACTIVITY)
        except FidelityError as error:
            self.context.journal.update(error=str(error))
        self.callbacks.on_violations(new_violations)

    def _handle_request(self, request: ControlRequest, pid: int) -> Iterator[ControlReply]:
        if request.action == "links":
            links = tuple(build_link_document(link) for link in self._measure_links())
            yield ControlReply(LinksReply(links=links))
            return
        host = select_one_host(request.host, self.context.scenario.hosts)
        if request.action == "enter":
            namespaces = self.continuum.namespaces
            with open_namespaces(
                namespaces.path(host.name), namespaces.uts_path(host.name)
            ) as descriptors:
                yield ControlReply(_create_entry(host), descriptors)
        else:
            held = self._limit_process(host, pid, interactive=request.interactive)
            yield ControlReply(HoldReply(held=held))

    def _limit_process(self, host: Host, pid: int, *, interactive: bool) -> bool:
        """Limit a process to the host's CPU share and return whether it is limited.

        An interactive shell is not limited by stop signals, since it would treat each as a Ctrl-Z.
        """
        shares = self.continuum.shares
        # The kernel reports 0 for a process that has no id in this PID namespace.
        if pid <= 0:
            raise InputError(
                "a process outside the emulation cannot be limited to a CPU share — run it with"
                " `laggard ssh`"
            )
        if interactive and shares.mechanism == "stop-signal":
            return False
        shares.attach(host.name, pid, family=True)
        return True

    def _measure_links(self) -> tuple[LiveLink, ...]:
        now, dilation = self._scheduler.constraints(), self.context.dilation

        def current(pair: Pair) -> Constraint:
            return now.get(pair, Constraint())

        groups = group_links(self.context.scenario.links, current)
        measured = self.prober.round_trips(round_trip_probes(groups, current, dilation))
        look = Look(time.monotonic_ns(), self.continuum.links.counters())
        last, self._last_counters = self._last_counters, look
        return live_links(groups, current, measured, last, look, dilation)


def _create_entry(host: Host) -> EnterReply:
    return EnterReply(
        host=host.name,
        address=host.address,
        ipv6=host.ipv6[0] if host.ipv6 else None,
        home=_read_folder_variable("HOME"),
        temporary=_read_folder_variable("TMPDIR"),
    )


def _read_folder_variable(name: str) -> str | None:
    """Return a folder that the environment names, unless it cannot be part of a reply."""
    folder = os.environ.get(name, "")
    return folder if is_node_path(folder) else None


def select_one_host(pattern: str, hosts: Sequence[Host]) -> Host:
    """Return the one host with this name, or the only one that matches this pattern.

    Raises:
        InputError: no host matches, or several do
    """
    chosen = select_hosts(pattern, hosts)
    if len(chosen) == 1:
        return chosen[0]
    names = [host.name for host in chosen or hosts]
    rule = f"{len(chosen)} hosts match" if chosen else "no host matches"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise InputError(f"{pattern}: {rule}, and exactly one must — choose one of {shown}")
