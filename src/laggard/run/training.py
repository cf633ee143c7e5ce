"""Training on the continuum: start the workers, apply events, supervise them to the end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.run_schema import ALARMS_FILE
from laggard.core.work_counter import charge_start
from laggard.layers_services.local.launch import ForkServer, ProcessSpec
from laggard.network_emulation.dynamics import EventRecord, Scheduler, peak_rates
from laggard.network_emulation.memory.watch import MemoryWatch, short_overruns
from laggard.run.alarm_display import AlarmDisplay
from laggard.run.continuum import Continuum
from laggard.run.fidelity_monitor import FidelityMonitorThread
from laggard.run.rank_work import find_slow_ranks, read_rank_work
from laggard.run.run_context import RunContext
from laggard.run.straggler_watcher_plan import WATCHER_MODULE, plan_watcher
from laggard.run.supervisor import SupervisedProcess, Supervisor
from laggard.run_folder.counters import write_counters, write_events
from laggard.run_folder.fidelity_violations import TimedViolation, find_late_changes
from laggard.run_folder.training_state import build_training_state
from laggard.scenario.client_profiles import profile_clients
from laggard.supervision.churn import ChurnReceiver, ChurnScheduler
from laggard.supervision.log_tail import read_log_tail
from laggard.workloads.output.worker_output import read_lines, write_whole
from laggard.workloads.plan import (
    ENVIRONMENT,
    ServerPlan,
    WorkerPlan,
    join_exchange,
    plan_addresses,
    plan_evaluator,
    plan_link_sampler,
    plan_workers,
)
from laggard.workloads.specification.churn import turns
from laggard.workloads.tracing.traffic import read_traffic
from laggard.workloads.transport.keys import make_endpoints

READY_TIMEOUT_S = 120.0
START_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 60.0
WATCHER_EXIT_TIMEOUT_S = 5.0


def run_training(
    context: RunContext, continuum: Continuum, server: ForkServer
) -> tuple[TimedViolation, ...]:
    """Run the workload to its stopping rule.

    Returns:
        The violations of the emulation's tolerances during training.

    Raises:
        WorkerError: a worker died or hangs.
    """
    context.output_dir.folder.mkdir()
    workers = plan_workers(
        context.scenario.workload,
        context.scenario.hosts,
        context.output_dir.folder,
        context.dilation.factor,
        drives=continuum.drives.paths,
        shared=continuum.shares.shares,
    )
    workers, server_plan = _plan_exchange(context, workers)
    memory = MemoryWatch(context.scenario.memory)
    supervisor = Supervisor(
        server,
        context.output_dir,
        len(workers),
        context.dilation.factor,
        memory,
        tolerates_loss=context.scenario.workload.strategy.supports_churn,
    )
    with context.journal.stage("start workers", f"{len(workers)} ranks"):
        _start_processes(context, continuum, server, supervisor, workers, server_plan)
    counters_before = continuum.links.counters()
    scenario, journal = context.scenario, context.journal
    churn = ChurnScheduler(
        turns(scenario.workload.churn_entries, scenario.hosts, scenario.ranks),
        workers,
        _LocalRanks(context, continuum, server, supervisor),
        context.dilation,
        ChurnReceiver(lambda events: journal.update(churn=events), journal.warn),
    )
    with context.journal.stage("train"):
        alarms = AlarmDisplay(
            context.folder / ALARMS_FILE, context.scenario.hosts, context.journal.display
        )
        violations = _supervise_training(context, continuum, supervisor, churn, alarms)
    context.journal.warn(short_overruns(memory.limits, memory.peaks))
    supervisor.wait_for_exits(EXIT_TIMEOUT_S * context.dilation.factor)
    supervisor.wait_for_process("watcher", WATCHER_EXIT_TIMEOUT_S)
    alarms.update()
    lost = tuple(
        f"{each.name} on {each.host} was killed; the other workers continued without it"
        for each in supervisor.lost
    )
    context.journal.warn(lost)
    context.journal.update(
        lost_ranks=tuple(each.rank for each in supervisor.lost if each.rank >= 0)
    )
    work = read_rank_work(context.output_dir, workers)
    context.journal.warn(find_slow_ranks(work, workers, continuum.shares.least_efficiency))
    traffic = read_traffic(context.output_dir, range(len(workers) + 1))
    write_counters(
        context.folder,
        continuum.links,
        counters_before,
        continuum.drives.counters(),
        memory.peaks,
        work,
        traffic,
    )
    return violations


def _plan_exchange(
    context: RunContext, workers: tuple[WorkerPlan, ...]
) -> tuple[tuple[WorkerPlan, ...], ServerPlan | None]:
    """Give every worker its endpoint for models, and plan the strategy's server, if it has one."""
    workload, hosts = context.scenario.workload, context.scenario.hosts
    if not (workload.strategy.uses_server or workload.strategy.peer_to_peer):
        return workers, None
    endpoints = make_endpoints(plan_addresses(workload, hosts), workers[0].timeout_s)
    return join_exchange(workers, hosts, endpoints, profile_clients(context.scenario))


def _start_processes(
    context: RunContext,
    continuum: Continuum,
    server: ForkServer,
    supervisor: Supervisor,
    workers: Sequence[WorkerPlan],
    server_plan: ServerPlan | None,
) -> None:
    """Start all processes and wait for the first step.

    Workers start at full speed; their CPU shares apply from before the first step.
    """
    _start_auxiliary_processes(context, continuum, server, supervisor, workers)
    if server_plan is not None:
        log = context.logs / "server.log"
        pid = server.spawn(
            _create_process_spec(
                context,
                continuum,
                "server",
                "laggard.workloads.serving.parameter_server:main",
                server_plan,
                log,
            )
        )
        supervisor.add_process(
            SupervisedProcess("the server", -1, server_plan.host, pid, log, in_host=True)
        )
    present = [worker for worker in workers if not worker.late]
    for worker in present:
        _start_worker(context, continuum, server, supervisor, worker)
    # The server's number follows those of the ranks.
    nodes = [worker.rank for worker in present] + (
        [len(workers)] if server_plan is not None else []
    )
    ready = [context.output_dir.ready(node) for node in nodes]
    supervisor.wait_for(ready, READY_TIMEOUT_S, "the workers did not connect to each other")
    for process in supervisor.processes.values():
        if process.in_host:
            work_file = context.output_dir.work(process.rank)
            continuum.shares.attach(
                process.host, process.pid, work=work_file if work_file.exists() else None
            )
    # Workers wait for this file, so all shares apply before the first step.
    write_whole(context.output_dir.start_signal, b"")
    supervisor.wait_for(
        [context.output_dir.zero],
        START_TIMEOUT_S * context.dilation.factor,
        "the first step did not begin",
    )


def _start_worker(
    context: RunContext,
    continuum: Continuum,
    server: ForkServer,
    supervisor: Supervisor,
    worker: WorkerPlan,
) -> SupervisedProcess:
    """Start a worker in its host, and supervise it."""
    name = f"rank-{worker.rank}"
    log = context.logs / (f"{name}.{worker.life + 1}.log" if worker.life else f"{name}.log")
    pid = server.spawn(
        _create_process_spec(context, continuum, name, "laggard.workloads.worker:main", worker, log)
    )
    joined = context.output_dir.ready(worker.rank, worker.life) if worker.late else None
    process = SupervisedProcess(
        f"rank {worker.rank}", worker.rank, worker.host, pid, log, in_host=True, joined_file=joined
    )
    supervisor.add_process(process)
    return process


@dataclass(frozen=True)
class _LocalRanks:
    """Processes of the ranks in the hosts of this machine (`RankProcesses`)."""

    context: RunContext
    continuum: Continuum
    server: ForkServer
    supervisor: Supervisor

    def start_joining(self, plan: WorkerPlan) -> None:
        """Start a worker that joins, at its host's share, so that it slows down no other worker."""
        process = _start_worker(self.context, self.continuum, self.server, self.supervisor, plan)
        work_file = self.context.output_dir.work(plan.rank, plan.life) if plan.shared else None
        if work_file is not None:
            charge_start(work_file)
        self.continuum.shares.attach(process.host, process.pid, work=work_file)

    def has_joined(self, rank: int) -> bool:
        """Return whether the worker has written that it joined."""
        joined = self.supervisor.find_last_process(rank).joined_file
        return joined is not None and joined.exists()

    def kill_rank(self, rank: int) -> bool:
        """Kill a rank's process."""
        return self.supervisor.kill_rank(rank)

    def read_last_words(self, rank: int) -> str:
        """Return the end of the log of a rank's last process."""
        return read_log_tail(self.supervisor.find_last_process(rank).log)


def _start_auxiliary_processes(
    context: RunContext,
    continuum: Continuum,
    server: ForkServer,
    supervisor: Supervisor,
    workers: Sequence[WorkerPlan],
) -> None:
    """Start the evaluator, the link sampler and the straggler watcher.

    They run outside the continuum's hosts and shares.
    """
    sampler = plan_link_sampler(workers, context.scenario.hosts, continuum.namespaces.paths)
    arguments = {
        "evaluator": ("laggard.workloads.evaluator:main", plan_evaluator(workers).to_json()),
        "link_sampler": ("laggard.workloads.link_sampler:main", sampler.to_json()),
        "watcher": (f"{WATCHER_MODULE}:main", plan_watcher(context).model_dump_json()),
    }
    for name, (entry, argument) in arguments.items():
        log = context.logs / f"{name}.log"
        pid = server.spawn(ProcessSpec(name, "", entry, argument, dict(ENVIRONMENT), log))
        supervisor.add_process(
            SupervisedProcess(name, -1, "the controller", pid, log, dispensable=name == "watcher")
        )


def _create_process_spec(
    context: RunContext,
    continuum: Continuum,
    name: str,
    entry: str,
    plan: WorkerPlan | ServerPlan,
    log: Path,
) -> ProcessSpec:
    """Describe a process in a host of the continuum."""
    cpu = context.cpu.cpus.get(plan.host)
    return ProcessSpec(
        name=name,
        host=plan.host,
        entry=entry,
        argument=plan.to_json(),
        environment=dict(ENVIRONMENT),
        log=log,
        network_namespace=continuum.namespaces.path(plan.host),
        uts_namespace=continuum.namespaces.uts_path(plan.host),
        cpus=None if cpu is None else frozenset({cpu}),
    )


def _supervise_training(
    context: RunContext,
    continuum: Continuum,
    supervisor: Supervisor,
    churn: ChurnScheduler,
    alarms: AlarmDisplay,
) -> tuple[TimedViolation, ...]:
    """Apply events and churn, monitor fidelity and processes, until training ends.

    Returns:
        The violations, and the changes that took effect too late.
    """
    zero_ns = int(json.loads(context.output_dir.zero.read_text())["zero_ns"])
    context.journal.update(first_step_s=round((zero_ns - context.started_ns) / 1e9, 3))
    scheduler = Scheduler(
        context.scenario.changes,
        continuum.links,
        continuum.shares,
        context.dilation,
        context.scenario.shares,
        context.scenario.links.pairs,
        continuum.drives,
        context.scenario.drives,
    )
    scheduler.start(zero_ns)
    churn.start_clock(zero_ns)
    events: tuple[EventRecord, ...] = ()
    try:
        progress_updater = _ProgressUpdater(context, zero_ns)
        with FidelityMonitorThread(
            continuum,
            peak_rates(context.scenario.links.pairs, context.scenario.changes),
            context.dilation,
        ) as watch:
            while not context.output_dir.done.exists():
                supervisor.check(churn.wait_s)
                churn.apply_due()
                continuum.links.check_alive()
                continuum.shares.check_alive()
                if progress_updater.update():
                    alarms.update()
            churn.finish()
    finally:
        events = scheduler.stop()
        write_events(context.folder, events)
    end_ns = int(json.loads(context.output_dir.done.read_text())["end_ns"])
    return (
        *watch.violations(zero_ns, end_ns),
        *find_late_changes(events, zero_ns, context.dilation, end_ns),
    )


@dataclass
class _ProgressUpdater:
    """Updater of the display's training state, at most twice a second."""

    context: RunContext
    zero_ns: int
    last_s: float = 0.0

    def update(self) -> bool:
        """Show the progress at most twice a second; return whether it was shown."""
        now_s = time.monotonic()
        if now_s - self.last_s < 0.5:
            return False
        self.last_s = now_s
        elapsed_s = self.context.dilation.virtual_s((time.monotonic_ns() - self.zero_ns) / 1e9)
        lines = read_lines(self.context.output_dir.progress)
        self.context.journal.display.show_training(
            build_training_state(lines, elapsed_s, self.context.scenario.workload.stop)
        )
        return True
