"""Remote run, from the reservation of its machines to its report.

Steps that need the machines run while the machines are held. The analysis needs none and runs
after their release. Data is fetched before the release is tried.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from laggard.core.errors import EXIT_INTERRUPTED, DeploymentError, LaggardError
from laggard.core.run_schema import RunRecord, RunSettings
from laggard.core.text.terminal_output import print_text
from laggard.layers_services.machine import Machine
from laggard.layers_services.ssh.fetch_files import RemoteSource
from laggard.layers_services.ssh.remote_processes import RemoteProcesses
from laggard.layers_services.ssh.ssh_config import write_ssh_config
from laggard.network_emulation.links.backend import LinkBackend
from laggard.remote.agent.operations import FINGERPRINT, LEAVE
from laggard.remote.agent_plans import (
    find_evaluator_host,
    find_opening_host,
    list_sent_files,
    plan_agents,
)
from laggard.remote.agent_pool import AgentPool
from laggard.remote.e2clab_stages import E2clabStages, deploy_e2clab_stages
from laggard.remote.experiment import run_experiment
from laggard.remote.fetch_results import FetchConfig, FetchedResults, fetch_results
from laggard.remote.files.checkpoint_copies import CheckpointCopies
from laggard.remote.files.send_workload_files import send_workload_files
from laggard.remote.links import needs_netem
from laggard.remote.provision import (
    ProvisionedNodes,
    RemoteOptions,
    apply_addresses,
    fetch_wheels_early,
    plan_machines,
    provision_nodes,
)
from laggard.remote.testbeds.remote_testbed import MachinePlan, RemoteTestbed
from laggard.remote.training import RemoteRunContext, TrainingResult, apply_emulation, run_training
from laggard.run_folder.collect import analyze_training, report_untrained_run
from laggard.run_folder.display import SilentDisplay, TextDisplay
from laggard.run_folder.fidelity_checks import require_recorded_fidelity
from laggard.run_folder.fidelity_violations import require_no_violations
from laggard.run_folder.journal import Journal
from laggard.run_folder.record import create_record, record_failure, record_origin
from laggard.run_folder.store import RunFolder
from laggard.scenario.load import Scenario
from laggard.scenario.run_plan import find_unlimited_programs
from laggard.supervision.interrupts import interrupt_on_signals
from laggard.workloads.coordination.barrier_relay import BarrierHub
from laggard.workloads.coordination.progress_relay import ProgressHub
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.plan import ENVIRONMENT

AGENT_MODULE = "laggard.remote.agent.main"

_log = logging.getLogger(__name__)


def record_energy(
    journal: Journal,
    testbed: RemoteTestbed,
    machines: Sequence[Machine],
    start_s: float,
    end_s: float,
) -> None:
    """Record the energy of the metered nodes, or a warning if the testbed cannot report it.

    Args:
        journal: journal of the run.
        testbed: testbed that the run used.
        machines: machines that the run used.
        start_s: Unix time at which training began.
        end_s: Unix time at which training ended.
    """
    if not testbed.has_power_meters(machines):
        return
    with journal.stage("energy", "from the nodes' power meters"):
        try:
            journal.update(energy=testbed.measure_energy(machines, start_s, end_s))
        except LaggardError as error:
            journal.update(warnings=(*journal.record.warnings, f"energy: {error}"))


def run_remote(scenario: Scenario, options: RemoteOptions) -> tuple[RunRecord, Path]:
    """Run a scenario from the reservation to the report.

    Args:
        scenario: loaded scenario.
        options: testbed, folder of runs and behavior of the command.

    Returns:
        The final record and the path of the run folder. A failed run returns too; its record
        contains the error.

    Raises:
        InputError: the inventory or the reservation cannot be used; nothing was started.
        RunFolderError: the run folder cannot be created.
    """
    journals: list[Journal] = []
    with ExitStack() as stack:
        stack.enter_context(interrupt_on_signals(lambda: _end_at_once(journals)))
        # The plan comes before the run folder, so a refused scenario leaves no folder behind.
        plan = plan_machines(scenario, options.testbed)
        warnings = (*plan.warnings, *find_unlimited_programs(scenario))
        settings = RunSettings(
            fidelity=options.fidelity, for_s=options.for_s, report=options.report
        )
        draft = create_record(
            scenario, options.testbed.name, "netem", options.command, warnings, settings
        )
        folder, record = RunFolder.create(options.runs, draft)
        stack.enter_context(folder)
        journal = Journal(record, folder, SilentDisplay() if options.quiet else TextDisplay())
        journals.append(journal)
        _run_and_analyze(scenario, plan, options, journal)
        return journal.record, folder.path


def _run_and_analyze(
    scenario: Scenario, plan: MachinePlan, options: RemoteOptions, journal: Journal
) -> None:
    try:
        journal.folder.logs.mkdir()
        record_origin(journal, scenario)
        state = _run_on_reserved_nodes(scenario, plan, options, journal)
        if state.trained is not None:
            began_s, ended_s = state.trained.began_s, state.trained.ended_s
            # Power meters can still be read after the release of the machines.
            record_energy(journal, options.testbed, state.machines, began_s, ended_s)
        if state.fetched is not None and state.fetched.has_begun:
            analyze_training(journal, scenario, state.fetched.done)
        else:
            report_untrained_run(journal)
    # This is the last place that can record an unexpected exception in the run folder.
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        record_failure(journal, error)
    finally:
        journal.display.close()


def _end_at_once(journals: Sequence[Journal]) -> NoReturn:
    """End this process after a second signal, and state which machines the run still holds."""
    for journal in journals:
        held = [
            f"{job.site}:{job.job_id or '?'}" for job in journal.record.jobs if not job.released
        ]
        release = (
            f"; it still holds {', '.join(held)} — `laggard destroy {journal.record.id}` releases"
            " what it holds"
            if held
            else ""
        )
        reason = f"ended at once by a second signal{release}"
        print_text(f"error: {reason}", err=True)
        with suppress(LaggardError):
            journal.update(status="interrupted", error=reason)
    # Cleanup, which the first signal has begun, may take minutes.
    os._exit(EXIT_INTERRUPTED)


def _run_on_reserved_nodes(
    scenario: Scenario, plan: MachinePlan, options: RemoteOptions, journal: Journal
) -> _RunState:
    """Reserve the machines, run on them and release them.

    Every exception is written to the record and none is raised, so that the caller can still
    analyze the data that was fetched.
    """
    state, started_ns = _RunState(), time.monotonic_ns()
    try:
        if plan.expected_platforms is not None:
            with journal.stage("wheels", "Python packages of the workers, before the reservation"):
                fetch_wheels_early(options.testbed.name, [plan])
        with plan.reserve_nodes(journal) as reserved_nodes:
            shaped = bool(scenario.links.pairs or scenario.links.access or scenario.links.shared)
            netem = needs_netem(scenario.links, scenario.changes)
            ranks = [host.name for host in scenario.ranks]
            provisioned = provision_nodes(
                reserved_nodes, ranks, journal, shaped=shaped, netem=netem
            )
            context = RemoteRunContext(
                journal,
                netem,
                reserved_nodes.walltime_end_s,
                started_ns,
                options.fidelity,
                options.for_s,
            )
            _run_on_nodes(
                apply_addresses(scenario, provisioned.machines), provisioned, context, state
            )
    # This is the last place that can record an unexpected exception in the run folder.
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        record_failure(journal, error)
    return state


class _RunState:
    """Results of a run so far, valid even if a later step failed.

    Attributes:
        fetched: files that were fetched; None before the fetch.
        machines: machines that the run used.
        trained: end of the training; None if training did not finish.
    """

    fetched: FetchedResults | None = None
    machines: tuple[Machine, ...] = ()
    trained: TrainingResult | None = None


def _run_on_nodes(
    scenario: Scenario, provisioned: ProvisionedNodes, context: RemoteRunContext, state: _RunState
) -> None:
    journal = context.journal
    state.machines = provisioned.machines
    plans = plan_agents(scenario, provisioned, journal.record.id)
    ssh_config = write_ssh_config(provisioned.machines, journal.folder.path / "ssh_config")
    # Without these variables, libraries that the agent imports would start threads, and a process
    # with threads cannot safely fork workers.
    settings = ("env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()))
    commands = {
        name: shlex.join((*settings, node.python, "-m", AGENT_MODULE))
        for name, node in provisioned.nodes.items()
    }
    machines = [machine.alias for machine in provisioned.machines]
    hubs = (
        BarrierHub(machines, find_opening_host(scenario)),
        ProgressHub(machines, find_evaluator_host(scenario)),
    )
    with ExitStack() as stack:
        stages = stack.enter_context(deploy_e2clab_stages(scenario, provisioned, journal))
        processes = stack.enter_context(RemoteProcesses(provisioned.machines, ssh_config, commands))
        agent_pool = AgentPool(processes, plans, *hubs, journal.folder.logs)
        with journal.stage("start agents", f"one on each of {len(plans)} nodes"):
            agent_pool.start()
            # Any request would do: its reply shows that the agent runs and has accepted its plan.
            agent_pool.call_all(FINGERPRINT, timeout_s=60.0)
        if scenario.trains and (files := list_sent_files(scenario.workload)):
            with journal.stage("send files", ", ".join(files)):
                send_workload_files(files, provisioned.nodes, plans)
        with apply_emulation(scenario, provisioned, agent_pool, context) as links:
            stages.run("prepare")
            if not scenario.trains:
                _run_untrained(scenario, agent_pool, links, stages, context, state)
                return
            stages.run("launch")
            pythons = {name: node.python for name, node in provisioned.nodes.items()}
            config = FetchConfig(ssh_config, pythons)
            try:
                with _copy_checkpoints(scenario, agent_pool, context, config) as checkpoints:
                    state.trained = run_training(scenario, agent_pool, links, context, checkpoints)
            finally:
                # Collect after a failure too: the records show its cause.
                with journal.stage("collect"):
                    state.fetched = fetch_results(scenario, agent_pool, journal.folder.path, config)
        # An agent that leaves deletes its run folder. Hosts with missing data keep theirs, so that
        # the user can still copy it.
        _leave(agent_pool, [name for name in plans if name not in state.fetched.missing_hosts])
        stages.run("finalize")
        if state.fetched.missing_hosts:
            raise DeploymentError(_format_missing_data(state.fetched))
        journal.warn(require_no_violations(journal.folder.path, state.trained.violations))
        require_recorded_fidelity(journal.folder.path)


@contextmanager
def _copy_checkpoints(
    scenario: Scenario, agent_pool: AgentPool, context: RemoteRunContext, config: FetchConfig
) -> Iterator[CheckpointCopies | None]:
    """Copy every checkpoint to the run folder, if the workload asks for checkpoints."""
    if scenario.workload.checkpoint_every is None:
        yield None
        return
    head = find_opening_host(scenario)
    output_dir = WorkerOutputDir(Path(agent_pool.plans[head].folder) / "workers")
    source = RemoteSource(head, config.ssh_config, config.pythons[head], str(output_dir.folder))
    copy = context.journal.folder.path / output_dir.checkpoint.name
    with CheckpointCopies(source, copy) as checkpoints:
        yield checkpoints


def _run_untrained(
    scenario: Scenario,
    agent_pool: AgentPool,
    links: LinkBackend,
    stages: E2clabStages,
    context: RemoteRunContext,
    state: _RunState,
) -> None:
    """Run an experiment that trains nothing; its own plays of `finalize` fetch its data."""
    ended = run_experiment(scenario, agent_pool, links, stages, context)
    state.trained = ended.result
    stages.run("finalize")
    _leave(agent_pool, list(agent_pool.plans))
    if ended.interrupt is not None:
        raise ended.interrupt
    folder = context.journal.folder.path
    context.journal.warn(require_no_violations(folder, ended.result.violations, "it was up"))
    require_recorded_fidelity(folder)


def _leave(agent_pool: AgentPool, hosts: Sequence[str]) -> None:
    """Let agents remove their run folders and end; a folder that remains is reported in the log."""
    pending = [agent_pool.send_request(host, LEAVE) for host in hosts]
    for each in pending:
        try:
            agent_pool.wait_for_reply(each, 60.0)
        except LaggardError as error:
            _log.warning("the run folder of a node was not removed: %s", error)


def _format_missing_data(fetched: FetchedResults) -> str:
    """Return the error message about hosts whose data stayed on their nodes."""
    where = "\n".join(f"  {name}: {folder}" for name, folder in fetched.missing_hosts.items())
    return (
        f"the data of {len(fetched.missing_hosts)} nodes could not be fetched; it is still on the"
        f" nodes, in these folders:\n{where}"
    )
