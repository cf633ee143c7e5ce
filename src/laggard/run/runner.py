"""One run from outside its sandbox: prerequisites, run folder, sandbox, collection, analysis.

This process can be killed at any moment. Then the sandbox ends with it, the janitor removes the
cgroups, and the run folder reads as interrupted because no process holds its lock.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from laggard.core.errors import RunFolderError
from laggard.core.process.termination_signals import TERMINATION_SIGNALS, hold_signals
from laggard.core.provenance import fingerprint
from laggard.core.run_schema import RunRecord, RunSettings
from laggard.layers_services.local import sandbox
from laggard.layers_services.local.janitor import Janitor, run_name
from laggard.layers_services.local.prerequisites import check_prerequisites
from laggard.network_emulation.compute.cgroups import (
    CgroupSet,
    prepare_cgroups,
    run_folders,
    sweep_cgroups,
)
from laggard.network_emulation.compute.cpu_plan import CpuPlan, plan_cpus, usable_cores
from laggard.network_emulation.probe import BackendName, Requested, choose_backend, kernel_has_ipv6
from laggard.run.controller import run_controller
from laggard.run.run_context import RunContext
from laggard.run_folder.collect import (
    analyze_training,
    collect_streams,
    remove_streams,
    report_untrained_run,
)
from laggard.run_folder.display import SilentDisplay, TextDisplay
from laggard.run_folder.fidelity_checks import FidelityPolicy
from laggard.run_folder.journal import Journal
from laggard.run_folder.record import create_record, record_failure, record_origin
from laggard.run_folder.store import RunFolder
from laggard.scenario.emulation_limits import list_emulation_limits
from laggard.scenario.load import Scenario
from laggard.scenario.run_plan import count_reserved_cores
from laggard.supervision.child_process import run_in_child
from laggard.supervision.interrupts import describe_interrupt, interrupt_on_signals

ENDING_S = 2.0
"""Time in which a run must end after a signal; the streams of a killed one are complete too."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Attributes:
        runs: folder of all run folders.
        testbed: `local`.
        links: backend that shapes the links; `auto` uses the kernel's netem if it is available.
        dilation: real seconds per virtual second; None for the smallest value with which the
            shares fit.
        quiet: whether to print nothing during the run.
        command: command line, for the record.
        fidelity: effect of a failed check before training.
        for_s: seconds between launch and finalize, for the record; `run_experiment` sets it.
        report: whether to draw the report, which takes seconds; `laggard report` draws it later.
    """

    runs: Path
    testbed: str = "local"
    links: Requested = "auto"
    dilation: float | None = None
    quiet: bool = False
    command: tuple[str, ...] = ()
    fidelity: FidelityPolicy = "require"
    for_s: float = 0.0
    report: bool = True


def run_local(scenario: Scenario, options: RunOptions) -> tuple[RunRecord, Path]:
    """Run a scenario to its end on this machine.

    Args:
        scenario: loaded scenario.
        options: options of the run.

    Returns:
        The final record and the run folder; the record of a failed run has the status `failed`.

    Raises:
        PrerequisiteError: this machine lacks something; nothing was started.
        RunFolderError: the run folder cannot be created, or the sandbox would not see it.
    """
    return run_in_sandbox(scenario, options, run_controller, _collect_results, ENDING_S)


def run_in_sandbox(
    scenario: Scenario,
    options: RunOptions,
    run_inside: Callable[[RunContext], int],
    finalize: Callable[[RunContext, int], None],
    ending_s: float,
) -> tuple[RunRecord, Path]:
    """Prepare a run of a scenario and execute it in a sandbox.

    Args:
        scenario: loaded scenario.
        options: options of the run.
        run_inside: function that runs in the sandbox and returns an exit status.
        finalize: function that runs outside afterwards; its second argument is that status, or 128
            plus the number of the signal that ended the sandbox.
        ending_s: seconds after a signal in which `run_inside` must end; it is killed afterwards.

    Returns:
        The final record and the run folder.

    Raises:
        PrerequisiteError: this machine lacks something; nothing was started.
        RunFolderError: the run folder cannot be created, or the sandbox would not see it.
    """
    started_ns = time.monotonic_ns()
    if sandbox.is_hidden(options.runs):
        raise RunFolderError(
            f"{options.runs}: the sandbox of a run mounts folders of its own over this path, so"
            " results written there would be lost — choose another folder with --runs"
        )
    backend = choose_backend(options.links)
    check_prerequisites(need_tun=backend == "userspace")
    cores = usable_cores()
    cpu = plan_cpus(
        scenario.peak_shares,
        cores,
        count_reserved_cores(scenario, len(cores)),
        options.dilation,
        scenario.share_kind,
    )
    # Hosts on a kernel without IPv6 have IPv4 addresses only.
    if not kernel_has_ipv6():
        scenario = scenario.with_hosts(replace(host, ipv6=()) for host in scenario.hosts)
    with ExitStack() as stack:
        # From here on, a signal waits until a process can handle it.
        stack.enter_context(hold_signals())
        # The janitor outlives this process. It starts before the run folder exists, so that it does
        # not share the folder's lock.
        janitor = stack.enter_context(Janitor.start())
        folder, record = RunFolder.create(
            options.runs, _draft_record(scenario, options, backend, cpu)
        )
        stack.enter_context(folder)
        journal = Journal(record, folder, SilentDisplay() if options.quiet else TextDisplay())
        try:
            folder.logs.mkdir()
            record_origin(journal, scenario)
            cgroups = _open_cgroups(scenario, janitor, stack)
            context = RunContext(
                scenario, backend, cpu, cgroups, journal, started_ns, options.fidelity
            )
            status = sandbox.run_in_sandbox(
                lambda: _run_interruptible(context, run_inside), ending_s
            )
            _finalize_in_child(context, lambda: finalize(context, status))
        except KeyboardInterrupt:
            _record_second_signal(journal)
        # This is the last place that can record an unexpected exception in the run folder.
        except Exception as error:  # noqa: BLE001
            record_failure(journal, error)
        return journal.record, folder.path


def _record_second_signal(journal: Journal) -> None:
    journal.reload()
    journal.update(
        status="interrupted",
        error="ended at once by a second signal; its data is kept, and `laggard report"
        f" {journal.record.id}` analyzes it",
    )


def _run_interruptible(context: RunContext, run_inside: Callable[[RunContext], int]) -> int:
    with interrupt_on_signals():
        return run_inside(context)


def _finalize_in_child(context: RunContext, finalize: Callable[[], None]) -> None:
    """Complete the record and analyze the data in a child process, which a signal can always end.

    Raises:
        KeyboardInterrupt: the user sent a second signal.
    """

    def finalize_recorded() -> int:
        try:
            finalize()
        # This is the last place that can record an unexpected exception in the run folder.
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
            return record_failure(context.journal, error)
        return 0

    ended = run_in_child(finalize_recorded, "the analysis of a run", ENDING_S)
    if ended.is_second:
        raise KeyboardInterrupt
    journal = context.journal
    journal.reload()
    repeat = f"`laggard report {journal.record.id}` repeats it"
    if journal.record.status != "running":
        return
    if ended.first is not None:
        reason = f"{describe_interrupt(ended.first)} during the analysis; {repeat}"
        journal.update(status="interrupted", error=reason)
    else:
        reason = f"the analysis ended with status {ended.status}; {repeat}"
        journal.update(status="failed", error=reason)


def _draft_record(
    scenario: Scenario, options: RunOptions, backend: BackendName, cpu: CpuPlan
) -> RunRecord:
    warnings = list_emulation_limits(scenario, dilation=options.dilation)
    settings = RunSettings(
        links=options.links,
        dilation=options.dilation,
        fidelity=options.fidelity,
        for_s=options.for_s,
        report=options.report,
    )
    first = create_record(scenario, options.testbed, backend, options.command, warnings, settings)
    return first.model_copy(
        update={"dilation": cpu.dilation, "hosts": (fingerprint.describe_machine(),)}
    )


def _open_cgroups(scenario: Scenario, janitor: Janitor, stack: ExitStack) -> CgroupSet | None:
    """Create the cgroups of a run, and arrange their removal.

    They are removed at the end of the run, by the janitor if this process is killed, and by the
    next run if the janitor is killed too.
    """
    sweep_cgroups()
    janitor.watch(run_folders(run_name()))
    cgroups = prepare_cgroups(scenario.shares, run_name())
    if cgroups is not None:
        stack.callback(cgroups.remove)
        stack.callback(cgroups.close)
    return cgroups


def _collect_results(context: RunContext, status: int) -> None:
    """Collect and analyze the existing data, however the run ended."""
    finalize_record(context, status)
    if context.output_dir.zero.exists():
        _collect_and_analyze(context)
    else:
        report_untrained_run(context.journal)
    context.journal.display.close()


def _collect_and_analyze(context: RunContext) -> None:
    """Write the tables, the outcome and the analysis of a training that began.

    Afterwards the streams of its processes are removed.
    """
    folder, journal = context.folder, context.journal
    with journal.stage("collect"):
        done = collect_streams(folder, context.scenario, context.dilation)
    analyze_training(journal, context.scenario, done)
    remove_streams(folder)


def finalize_record(context: RunContext, status: int) -> None:
    """Read the record that the sandbox wrote, and complete it if the controller could not."""
    journal = context.journal
    journal.reload()
    if status and journal.record.status == "running":
        if status - 128 in TERMINATION_SIGNALS:
            journal.update(
                status="interrupted", error=describe_interrupt(signal.Signals(status - 128))
            )
            return
        journal.update(
            status="failed",
            error=f"the controller exited with status {status} and no error message — see logs/",
        )
