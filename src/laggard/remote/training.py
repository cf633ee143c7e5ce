"""Emulation of links, drives and shares on real machines, and training on them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np

from laggard.core.clocks.clock_fit import ClockExchange, ClockFit, fit_clock
from laggard.core.emulated_drive import DriveCounters, DriveLimits
from laggard.core.errors import DeploymentError, LaggardError
from laggard.core.run_schema import FidelityCheck
from laggard.core.virtual_time import Dilation
from laggard.layers_services.ssh.clock_exchange import CLOCK_PORT
from laggard.network_emulation.dynamics import EventRecord, Scheduler
from laggard.network_emulation.links.backend import LinkBackend
from laggard.network_emulation.memory.watch import short_overruns
from laggard.remote.agent.operations import (
    APPLY_SHARES,
    BEGIN_TRAINING,
    COMPARE_CLOCKS,
    END_TRAINING,
    READ_CLOCK,
    REPORT_USAGE,
    SET_DRIVE,
    SET_SHARE,
    START_PROCESSES,
    VERIFY_DRIVE,
    WAIT_IMPORTS,
)
from laggard.remote.agent_plans import find_evaluator_host
from laggard.remote.agent_pool import AgentPool
from laggard.remote.files.checkpoint_copies import CheckpointCopies
from laggard.remote.links import AgentCommandRunner, measure_base_delays, verify_remote_links
from laggard.remote.provision import ProvisionedNodes
from laggard.remote.remote_ranks import RemoteRanks
from laggard.remote.supervise import POLL_S, RemoteSupervisor
from laggard.run_folder.counters import write_counters, write_events
from laggard.run_folder.fidelity_checks import FidelityPolicy, record_fidelity
from laggard.run_folder.fidelity_violations import TimedViolation, find_late_changes
from laggard.run_folder.journal import Journal
from laggard.run_folder.training_state import build_training_state
from laggard.scenario.load import Scenario
from laggard.supervision.churn import ChurnReceiver, ChurnScheduler
from laggard.workloads.coordination.barrier_relay import StopRequested
from laggard.workloads.specification.churn import turns

READY_TIMEOUT_S = 180.0
START_TIMEOUT_S = 120.0
IMPORT_TIMEOUT_S = 300.0
SHARES_TIMEOUT_S = 300.0
END_TIMEOUT_S = 60.0
WALLTIME_MARGIN_S = 90.0
"""Seconds before the end of the walltime at which the training is asked to stop. Evaluation,
checkpoint and the fetch of the data need this time."""

_DISPLAY_INTERVAL_S = 0.5
_log = logging.getLogger(__name__)
_CLOCK_REQUESTS = 12


@dataclass(frozen=True)
class RemoteRunContext:
    """Values that every stage of a remote run needs.

    Attributes:
        journal: journal of the run.
        netem: whether the links need netem, that is more than rate limits.
        walltime_end_s: `time.monotonic()` at which the testbed takes the machines back; None for
            never.
        started_ns: CLOCK_MONOTONIC at which the command began.
        fidelity: reaction to a failed fidelity check before training.
        for_s: seconds between launch and finalize, if nothing is trained.
    """

    journal: Journal
    netem: bool
    walltime_end_s: float | None
    started_ns: int
    fidelity: FidelityPolicy = "require"
    for_s: float = 0.0


@dataclass(frozen=True)
class TrainingResult:
    """End of a training that reached its stopping rule.

    Attributes:
        began_s: Unix time at which the first step began.
        ended_s: Unix time at which the controller knew that the last step had ended.
        violations: fidelity violations during the training.
    """

    began_s: float
    ended_s: float
    violations: tuple[TimedViolation, ...]


@contextmanager
def apply_emulation(
    scenario: Scenario,
    provisioned: ProvisionedNodes,
    agent_pool: AgentPool,
    context: RemoteRunContext,
) -> Iterator[LinkBackend]:
    """Shape the links, apply the shares, verify links, drives and shares, and compare clocks.

    The queues are removed when the context ends.

    Raises:
        FidelityError: a check is out of tolerance and `context.fidelity` requires it.
    """
    from laggard.network_emulation.links.netem import NetemBackend

    journal = context.journal
    with journal.stage("base delays", "delays of the testbed itself"):
        bases = measure_base_delays(agent_pool, scenario.links)
    agents = AgentCommandRunner(agent_pool)
    with journal.stage("links", f"{len(scenario.links.pairs)} host pairs, netem"):
        links = NetemBackend.start(
            scenario.links,
            provisioned.roles,
            None,
            None,
            agents,
            base_delays_ms=bases,
            plain=not context.netem,
            # Clock exchanges bypass netem: queues on their path would widen the error bound.
            unshaped_port=CLOCK_PORT,
            undo=agents.undo_at_end,
        )
    try:
        with journal.stage("imports"):
            # Imports keep the processors busy, which would disturb the measurements below.
            agent_pool.call_all(WAIT_IMPORTS, timeout_s=IMPORT_TIMEOUT_S)
        with journal.stage("verify links", "requested against measured round trips and rates"):
            checks = verify_remote_links(agent_pool, scenario.links, bases)
        checks += _verify_drives(scenario, agent_pool, journal)
        with journal.stage(
            "verify shares", "phases of 1, 10 and 100 ms on every host with a share"
        ):
            answers = agent_pool.call_all(APPLY_SHARES, timeout_s=SHARES_TIMEOUT_S)
        checks += _join_checks(answers)
        record_fidelity(journal.folder.path, checks, context.fidelity)
        with journal.stage("compare clocks"):
            agent_pool.call_all(
                COMPARE_CLOCKS,
                {name: {"go_on": True} for name in agent_pool.plans},
                IMPORT_TIMEOUT_S,
            )
        yield links
    finally:
        _close_links(links, agent_pool)


def _verify_drives(
    scenario: Scenario, agent_pool: AgentPool, journal: Journal
) -> tuple[FidelityCheck, ...]:
    if not scenario.drives:
        return ()
    with journal.stage("verify storage", f"bandwidth and latency of {len(scenario.drives)} drives"):
        return _join_checks(
            agent_pool.call_all(
                VERIFY_DRIVE, {host: {} for host in scenario.drives}, SHARES_TIMEOUT_S
            )
        )


def _join_checks(answers: Mapping[str, tuple[FidelityCheck, ...]]) -> tuple[FidelityCheck, ...]:
    """Return the checks of all nodes.

    Raises:
        DeploymentError: a node reports about another host.
    """
    for host, checks in answers.items():
        for check in checks:
            if check.src != host:
                raise DeploymentError(f"{host}: the node reports a measurement of {check.src}")
    return tuple(check for checks in answers.values() for check in checks)


def _close_links(links: LinkBackend, agent_pool: AgentPool) -> None:
    """Remove the queues from the nodes.

    An agent that has ended removed its queues itself, so errors are only logged.
    """
    agent_pool.tolerate_losses()
    try:
        links.close()
    except LaggardError as error:
        _log.info("%s", error)


def run_training(
    scenario: Scenario,
    agent_pool: AgentPool,
    links: LinkBackend,
    context: RemoteRunContext,
    checkpoints: CheckpointCopies | None = None,
) -> TrainingResult:
    """Run the workload to its stopping rule.

    Args:
        scenario: scenario with the real addresses of its hosts.
        agent_pool: agents of all nodes.
        links: links of the nodes.
        context: values that every stage needs.
        checkpoints: copier of the checkpoints; None if they are fetched at the end only.

    Raises:
        WorkerError: a worker died or hangs.
        DeploymentError: a node, or the connection to it, was lost.
    """
    journal = context.journal
    strategy, hosts = scenario.workload.strategy, [host.name for host in scenario.ranks]
    ranks = [worker for plan in agent_pool.plans.values() for worker in plan.workers]
    watch = RemoteSupervisor(
        agent_pool,
        hosts,
        has_server=strategy.uses_server,
        tolerates_loss=strategy.supports_churn,
        checkpoints=checkpoints,
        absent={worker.rank for worker in ranks if worker.late},
    )
    churn = ChurnScheduler(
        turns(scenario.workload.churn_entries, scenario.hosts, scenario.ranks),
        sorted(ranks, key=lambda worker: worker.rank),
        RemoteRanks(agent_pool, watch, one_at_a_time=strategy.peer_to_peer),
        Dilation(1.0),
        ChurnReceiver(lambda events: journal.update(churn=events), journal.warn),
    )
    with journal.stage("start workers", f"{len(scenario.ranks)} ranks"):
        agent_pool.call_all(START_PROCESSES)
        agent_pool.expect_heartbeats()
        watch.wait_ready(READY_TIMEOUT_S)
        agent_pool.call_all(BEGIN_TRAINING)
        zero_ns = watch.wait_zero(START_TIMEOUT_S)
    # The traffic of the checks has been counted too, so the counters start here.
    before = links.counters()
    with journal.stage("train"):
        began_s, ended_s, events = _supervise_training(
            scenario, agent_pool, watch, churn, links, context, zero_ns
        )
    with journal.stage("end"):
        _wait_for_exits(agent_pool, watch)
    agent_pool.tolerate_losses()
    drives, peaks = _collect_usage(agent_pool)
    write_counters(journal.folder.path, links, before, drives, peaks)
    journal.warn(short_overruns(scenario.memory, peaks))
    journal.warn(
        tuple(
            f"rank {rank} on {hosts[rank]} was killed; the other ranks continued without it"
            for rank in watch.lost
        )
    )
    journal.update(lost_ranks=tuple(watch.lost))
    end_ns = None if watch.done is None else watch.done.end_ns
    violations = (
        *watch.fidelity_monitors.violations(zero_ns, end_ns),
        *find_late_changes(events, zero_ns, Dilation(1.0), end_ns),
    )
    return TrainingResult(began_s, ended_s, violations)


def _supervise_training(
    scenario: Scenario,
    agent_pool: AgentPool,
    watch: RemoteSupervisor,
    churn: ChurnScheduler,
    links: LinkBackend,
    context: RemoteRunContext,
    zero_ns: int,
) -> tuple[float, float, tuple[EventRecord, ...]]:
    """Apply the timed events and the churn, and watch the ranks until training ends.

    Returns:
        The Unix times of the first step and of the end, and the events as they were applied. The
        wall clock is read once, because it may be set during the training.
    """
    clock = fit_controller_clock(agent_pool, scenario.reference_host.name)
    zero_here_ns = _to_controller_time(clock, zero_ns)
    began_s = time.time() - (time.monotonic_ns() - zero_here_ns) / 1e9
    context.journal.update(first_step_s=round((zero_here_ns - context.started_ns) / 1e9, 3))
    scheduler = create_scheduler(scenario, agent_pool, links, clock)
    scheduler.start(zero_here_ns)
    churn.start_clock(zero_here_ns)
    events: tuple[EventRecord, ...] = ()
    try:
        shown_s, stop_requested = 0.0, False
        while watch.done is None:
            watch.check(min(churn.wait_s, POLL_S))
            churn.apply_due()
            now_s = time.monotonic()
            if (
                not stop_requested
                and context.walltime_end_s is not None
                and now_s > context.walltime_end_s - WALLTIME_MARGIN_S
            ):
                # Only the evaluator's node decides the end of training, and says so in
                # `done.json`.
                stop_requested = True
                agent_pool.send_update(find_evaluator_host(scenario), StopRequested())
            if now_s - shown_s >= _DISPLAY_INTERVAL_S:
                shown_s = now_s
                elapsed_s = (time.monotonic_ns() - zero_here_ns) / 1e9
                context.journal.display.show_training(
                    build_training_state(watch.progress, elapsed_s, scenario.workload.stop)
                )
        churn.finish()
    finally:
        events = scheduler.stop()
        write_events(context.journal.folder.path, events)
    ended_s = began_s + (time.monotonic_ns() - zero_here_ns) / 1e9
    return began_s, ended_s, events


def create_scheduler(
    scenario: Scenario, agent_pool: AgentPool, links: LinkBackend, clock: ClockFit
) -> Scheduler:
    """Create the scheduler of the timed events.

    Args:
        scenario: scenario with the events.
        agent_pool: agents of all nodes, which change shares and drives.
        links: links of the nodes.
        clock: this machine's clock, fitted to the reference clock.
    """
    return Scheduler(
        scenario.changes,
        links,
        _RemoteShares(agent_pool, clock),
        Dilation(1.0),
        scenario.shares,
        scenario.links.pairs,
        _RemoteDrives(agent_pool, clock),
        scenario.drives,
    )


def _wait_for_exits(agent_pool: AgentPool, watch: RemoteSupervisor) -> None:
    """Wait until the training's processes have ended on all nodes, `END_TIMEOUT_S` at most."""
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while not all(agent_pool.call_all(END_TRAINING).values()):
        watch.check()
        if time.monotonic() > deadline_s:
            # Nothing is lost: the processes have streamed their records to disk, and their agents
            # will end them.
            return


def _collect_usage(agent_pool: AgentPool) -> tuple[dict[str, DriveCounters], dict[str, int]]:
    """Return the counters of limited drives and the peak memory of limited hosts.

    A node that does not answer is left out.
    """
    drives: dict[str, DriveCounters] = {}
    peaks: dict[str, int] = {}
    for host, plan in agent_pool.plans.items():
        if plan.drive is None and plan.memory_bytes is None:
            continue
        try:
            usage = agent_pool.call(host, REPORT_USAGE)
        except LaggardError as error:
            _log.warning("drive and memory usage not collected: %s", error)
            continue
        if usage.drive is not None:
            drives[host] = usage.drive
        if usage.peak_bytes is not None:
            peaks[host] = usage.peak_bytes
    return drives, peaks


def fit_controller_clock(agent_pool: AgentPool, head: str) -> ClockFit:
    """Fit this machine's CLOCK_MONOTONIC to the head's, by requests over the SSH session."""
    exchanges = []
    for _ in range(_CLOCK_REQUESTS):
        sent_ns = time.monotonic_ns()
        head_ns = agent_pool.call(head, READ_CLOCK)
        exchanges.append(ClockExchange(sent_ns, head_ns, head_ns, time.monotonic_ns()))
    return fit_clock(exchanges)


def _to_controller_time(clock: ClockFit, reference_ns: int) -> int:
    return int(clock.to_local(np.array([reference_ns], dtype=np.int64))[0])


@dataclass(frozen=True)
class _RemoteShares:
    """Setter of shares on nodes, for the scheduler of timed events (a `ShareSetter`)."""

    agent_pool: AgentPool
    clock: ClockFit

    def set_share(self, host: str, share: float) -> int:
        """Change a host's share and return when the change was in effect.

        The time is CLOCK_MONOTONIC of this machine, in ns.
        """
        return _to_controller_time(
            self.clock, self.agent_pool.call(host, SET_SHARE, {"share": share})
        )


@dataclass(frozen=True)
class _RemoteDrives:
    """Setter of drive limits on nodes, for the scheduler of timed events (a `DriveSetter`)."""

    agent_pool: AgentPool
    clock: ClockFit

    def set_limits(self, host: str, limits: DriveLimits) -> int:
        """Change the limits of a host's drive and return when the change was in effect.

        The time is CLOCK_MONOTONIC of this machine, in ns.
        """
        return _to_controller_time(
            self.clock, self.agent_pool.call(host, SET_DRIVE, asdict(limits))
        )
