"""One run from outside its sandbox: prerequisites, run folder, sandbox, collection, analysis.

What is here can be killed at any moment: the sandbox ends with it, the janitor removes the cgroups,
and the run folder reads as interrupted because nobody holds its lock.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from laggard.errors import RunFolderError
from laggard.experiments import fingerprint
from laggard.experiments.collecting import collect_and_analyse, tell_without_training
from laggard.experiments.controller import control
from laggard.experiments.ended_by_signals import ENDING
from laggard.experiments.job import Job, Journal
from laggard.experiments.plan import kept_free
from laggard.experiments.progress import SilentDisplay, TextDisplay
from laggard.experiments.recording import first_record
from laggard.experiments.run_store import RunFolder
from laggard.experiments.scenario import Scenario
from laggard.layers_services.e2clab_managers import manager_problems
from laggard.layers_services.e2clab_services import service_warnings
from laggard.layers_services.local import sandbox
from laggard.layers_services.local.janitor import Janitor, run_name
from laggard.layers_services.local.prerequisites import check_prerequisites
from laggard.network_emulation.compute.cgroups import (
    CgroupSet,
    prepare_cgroups,
    run_folders,
    sweep_cgroups,
)
from laggard.network_emulation.cpu_plan import CpuPlan, plan_cpus, usable_cores
from laggard.network_emulation.probe import BackendName, Requested, choose_backend, kernel_has_ipv6
from laggard.run_schema import RunRecord


@dataclass(frozen=True)
class Options:
    """How a scenario is to be run.

    Attributes:
        runs: where run folders are kept.
        testbed: `local`.
        links: what shapes the links; `auto` takes the kernel's netem where there is one.
        dilation: real seconds per virtual second; None takes the smallest that the shares fit with.
        quiet: say nothing while it runs.
        command: the command line, for the record.
        app_conf: the set of variables of `workflow_env.yaml` that the workflow sees.
    """

    runs: Path
    testbed: str = "local"
    links: Requested = "auto"
    dilation: float | None = None
    quiet: bool = False
    command: tuple[str, ...] = ()
    app_conf: str | None = None


def execute(scenario: Scenario, options: Options) -> tuple[RunRecord, Path]:
    """Run a scenario to its end.

    Args:
        scenario: as loaded.
        options: how to run it.

    Returns:
        The final record, and the run folder; a failed run is a record that says so.

    Raises:
        PrerequisiteError: this machine lacks something; nothing was started.
        RunFolderError: the run folder cannot be made, or the sandbox would not see it.
    """
    return enter(scenario, options, control, _conclude)


def enter(
    scenario: Scenario,
    options: Options,
    inside: Callable[[Job], int],
    conclude: Callable[[Job, int], None],
) -> tuple[RunRecord, Path]:
    """Prepare a run of a scenario and do it in a sandbox.

    Args:
        scenario: as loaded.
        options: how to run it.
        inside: what is done in the sandbox; returns an exit status.
        conclude: what is done outside afterwards with that status, or with 128 + the signal that
            ended the sandbox.

    Returns:
        The final record, and the run folder.

    Raises:
        PrerequisiteError: this machine lacks something; nothing was started.
        RunFolderError: the run folder cannot be made, or the sandbox would not see it.
    """
    started_ns = time.monotonic_ns()
    if sandbox.hides(options.runs):
        raise RunFolderError(
            f"{options.runs}: hosts of a run have a folder of their own there — choose another with"
            " --runs"
        )
    backend = choose_backend(options.links)
    check_prerequisites(need_tun=backend == "userspace")
    cores = usable_cores()
    cpu = plan_cpus(scenario.peak_shares, cores, kept_free(scenario, len(cores)), options.dilation)
    if not kernel_has_ipv6():
        scenario = scenario.with_hosts(replace(host, ipv6=()) for host in scenario.hosts)
    with ExitStack() as stack:
        janitor = stack.enter_context(Janitor.start())
        folder, record = RunFolder.create(options.runs, _draft(scenario, options, backend, cpu))
        stack.enter_context(folder)
        journal = Journal(record, folder, SilentDisplay() if options.quiet else TextDisplay())
        folder.logs.mkdir()
        folder.write_scenario(scenario.files())
        job = Job(
            scenario,
            backend,
            cpu,
            _cgroups(scenario, janitor, stack),
            journal,
            started_ns,
            options.app_conf,
        )
        status = sandbox.call(lambda: inside(job))
        conclude(job, status)
        return journal.record, folder.path


def _draft(scenario: Scenario, options: Options, backend: BackendName, cpu: CpuPlan) -> RunRecord:
    first = first_record(scenario, options.testbed, backend, options.command, _not_run(scenario))
    return first.model_copy(update={"dilation": cpu.dilation, "hosts": (fingerprint.machine(),)})


def _not_run(scenario: Scenario) -> tuple[str, ...]:
    """What the scenario asks of E2Clab that this testbed does not do: the run goes on without."""
    source = scenario.sources.layers_services
    services = service_warnings(scenario.layers, run_plugins=False, source=source)
    return tuple(
        str(problem) for problem in (*services, *manager_problems(scenario.layers, "local", source))
    )


def _cgroups(scenario: Scenario, janitor: Janitor, stack: ExitStack) -> CgroupSet | None:
    """Removed here at the end, by the janitor if this process is killed, and by the next run if the
    janitor is too.
    """
    sweep_cgroups()
    janitor.watch(run_folders(run_name()))
    cgroups = prepare_cgroups(scenario.shares, run_name())
    if cgroups is not None:
        stack.callback(cgroups.remove)
        stack.callback(cgroups.close)
    return cgroups


def _conclude(job: Job, status: int) -> None:
    """Collect and analyse what there is, whatever the run came to."""
    settle(job, status)
    if job.spool.zero.exists():
        collect_and_analyse(job)
    else:
        tell_without_training(job.folder)
    job.journal.display.close()


def settle(job: Job, status: int) -> None:
    """Read the record that was written in the sandbox; where its end is missing, say so."""
    journal = job.journal
    journal.catch_up()
    if status and journal.record.status == "running":
        if status - 128 in ENDING:
            journal.update(
                status="interrupted", error=f"ended by {signal.Signals(status - 128).name}"
            )
            return
        journal.update(
            status="failed", error=f"the controller ended with status {status}, without a word"
        )
