"""Links, drives and shares on real machines, then training on them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
from pydantic import JsonValue, TypeAdapter

from laggard.clocks import ClockFit, Exchange, fit_clock
from laggard.drive import DriveCounters, DriveLimits
from laggard.errors import LaggardError
from laggard.experiments.controller import require_fidelity
from laggard.experiments.guarding import TimedSlip, late_changes
from laggard.experiments.job import Journal
from laggard.experiments.remote.crew import Crew
from laggard.experiments.remote.ground import Prepared
from laggard.experiments.remote.links import ThroughAgents, measure_bases, verify
from laggard.experiments.remote.planning import evaluator_host
from laggard.experiments.remote.watch import RemoteWatch
from laggard.experiments.scenario import Scenario
from laggard.experiments.training import training_state, write_counters, write_events
from laggard.layers_services.clock_exchange import CLOCK_PORT
from laggard.network_emulation.backend import LinkBackend
from laggard.network_emulation.dynamics import EventRecord, Scheduler
from laggard.network_emulation.memory.watch import short_overruns
from laggard.run_schema import FidelityCheck
from laggard.virtual_time import Dilation
from laggard.workloads.gate_relay import StopAsked

READY_TIMEOUT_S = 180.0
START_TIMEOUT_S = 120.0
IMPORT_TIMEOUT_S = 300.0
SHARES_TIMEOUT_S = 300.0
END_TIMEOUT_S = 60.0
WALLTIME_MARGIN_S = 90.0
"""How long before the machines are taken away the last step is asked for: evaluation, checkpoint
and the way home take time."""

_SHOWN_EVERY_S = 0.5
_log = logging.getLogger(__name__)
_CLOCK_ASKS = 12


_CHECKS = TypeAdapter(tuple[FidelityCheck, ...])


@dataclass(frozen=True)
class _Usage:
    drive: DriveCounters | None
    peak_bytes: int | None


_USAGE = TypeAdapter(_Usage)


@dataclass(frozen=True)
class Course:
    """What goes along with a run.

    Attributes:
        journal: where to put down how it goes.
        netem: whether the links take more than rates.
        ends_s: `time.monotonic()` at which the machines are taken away; None: never.
        started_ns: CLOCK_MONOTONIC when the command began.
        app_conf: the set of variables of `workflow_env.yaml` that the workflow sees; None for none.
    """

    journal: Journal
    netem: bool
    ends_s: float | None
    started_ns: int
    app_conf: str | None = None


@dataclass(frozen=True)
class Trained:
    """A training that came to its end.

    Attributes:
        began_s: Unix time at which the first step began.
        ended_s: at which the last was known to be over.
        slips: where the emulation slipped in between.
    """

    began_s: float
    ended_s: float
    slips: tuple[TimedSlip, ...]


@contextmanager
def bring_up(
    scenario: Scenario, ready: Prepared, crew: Crew, course: Course
) -> Iterator[LinkBackend]:
    """Shape links, hold shares, measure both, compare clocks; the queues are removed at the end.

    Raises:
        FidelityError: a promise is not kept.
    """
    from laggard.network_emulation.netem import NetemBackend

    journal = course.journal
    with journal.stage("base delays", "what the testbed itself takes"):
        bases = measure_bases(crew, scenario.links)
    agents = ThroughAgents(crew)
    with journal.stage("links", f"{len(scenario.links.pairs)} host pairs, netem"):
        links = NetemBackend.start(
            scenario.links,
            ready.roles,
            None,
            None,
            agents,
            base_delays_ms=bases,
            plain=not course.netem,
            unshaped_port=CLOCK_PORT,
            undo=agents.undo_at_end,
        )
    try:
        with journal.stage("imports"):
            crew.call_all("wait_imports", timeout_s=IMPORT_TIMEOUT_S)
        with journal.stage("verify links", "round trips and rates, against what was asked for"):
            checks = verify(crew, scenario.links, bases)
        checks += _verify_drives(scenario, crew, journal)
        with journal.stage(
            "verify shares", "phases of 1, 10 and 100 ms on every host with a share"
        ):
            answers = crew.call_all("hold_shares", timeout_s=SHARES_TIMEOUT_S)
        checks += _checks(answers)
        require_fidelity(journal.folder.path, checks)
        with journal.stage("compare clocks"):
            crew.call_all(
                "compare_clocks", {name: {"go_on": True} for name in crew.plans}, IMPORT_TIMEOUT_S
            )
        yield links
    finally:
        _close(links, crew)


def _verify_drives(scenario: Scenario, crew: Crew, journal: Journal) -> tuple[FidelityCheck, ...]:
    if not scenario.drives:
        return ()
    with journal.stage("verify storage", f"bandwidth and latency of {len(scenario.drives)} drives"):
        return _checks(
            crew.call_all("verify_drive", {host: {} for host in scenario.drives}, SHARES_TIMEOUT_S)
        )


def _checks(answers: Mapping[str, JsonValue]) -> tuple[FidelityCheck, ...]:
    return tuple(check for answer in answers.values() for check in _CHECKS.validate_python(answer))


def _close(links: LinkBackend, crew: Crew) -> None:
    """Remove the queues; where an agent is gone, it has done so itself."""
    crew.make_do()
    try:
        links.close()
    except LaggardError as error:
        _log.info("%s", error)


def train(scenario: Scenario, crew: Crew, links: LinkBackend, course: Course) -> Trained:
    """Run the workload to its stopping rule.

    Raises:
        WorkerError: a worker died or hangs.
        DeploymentError: a node, or the way to it, is gone.
    """
    journal = course.journal
    strategy, hosts = scenario.workload.strategy, [host.name for host in scenario.ranks]
    watch = RemoteWatch(crew, hosts, serves=strategy.served, bears_loss=strategy.bears_churn)
    with journal.stage("start workers", f"{len(scenario.ranks)} ranks"):
        crew.call_all("start")
        crew.watch_silence()
        watch.wait_ready(READY_TIMEOUT_S)
        crew.call_all("go")
        zero_ns = watch.wait_zero(START_TIMEOUT_S)
    before = links.counters()
    with journal.stage("train"):
        began_s, events = _keep_time(scenario, crew, watch, links, course, zero_ns)
        ended_s = time.time()
    with journal.stage("end"):
        _wait_for_end(crew, watch)
    crew.make_do()
    drives, peaks = _usage(crew)
    write_counters(journal.folder.path, links, before, drives, peaks)
    journal.warn(short_overruns(scenario.memory, peaks))
    journal.warn(
        tuple(
            f"rank {rank} on {hosts[rank]} was killed, and the others went on without it"
            for rank in watch.lost
        )
    )
    journal.update(lost_ranks=tuple(watch.lost))
    end_ns = int(str((watch.done or {})["end_ns"]))
    slips = (
        *watch.guards.slips(zero_ns, end_ns),
        *late_changes(events, zero_ns, Dilation(1.0), end_ns),
    )
    return Trained(began_s, ended_s, slips)


def _keep_time(
    scenario: Scenario,
    crew: Crew,
    watch: RemoteWatch,
    links: LinkBackend,
    course: Course,
    zero_ns: int,
) -> tuple[float, tuple[EventRecord, ...]]:
    clock = controller_clock(crew, scenario.ranks[0].name)
    zero_here_ns = _here(clock, zero_ns)
    began_s = time.time() - (time.monotonic_ns() - zero_here_ns) / 1e9
    course.journal.update(first_step_s=round((zero_here_ns - course.started_ns) / 1e9, 3))
    scheduler = Scheduler(
        scenario.changes,
        links,
        _RemoteShares(crew, clock),
        Dilation(1.0),
        scenario.shares,
        scenario.links.pairs,
        _RemoteDrives(crew, clock),
        scenario.drives,
    )
    scheduler.start(zero_here_ns)
    events: tuple[EventRecord, ...] = ()
    try:
        shown_s, asked = 0.0, False
        while watch.done is None:
            watch.check()
            now_s = time.monotonic()
            if (
                not asked
                and course.ends_s is not None
                and now_s > course.ends_s - WALLTIME_MARGIN_S
            ):
                asked = True
                crew.tell(evaluator_host(scenario), StopAsked())
            if now_s - shown_s >= _SHOWN_EVERY_S:
                shown_s = now_s
                elapsed_s = (time.monotonic_ns() - zero_here_ns) / 1e9
                course.journal.display.training(
                    training_state(watch.progress, elapsed_s, scenario.workload.stop)
                )
    finally:
        events = scheduler.stop()
        write_events(course.journal.folder.path, events)
    return began_s, events


def _wait_for_end(crew: Crew, watch: RemoteWatch) -> None:
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while not all(crew.call_all("end_training").values()):
        watch.check()
        if time.monotonic() > deadline_s:
            return  # what they have streamed is on disk; their agents end them


def _usage(crew: Crew) -> tuple[dict[str, DriveCounters], dict[str, int]]:
    """What limited drives were asked for, and what limited hosts' workers held at most; a node that
    is gone says nothing.
    """
    drives: dict[str, DriveCounters] = {}
    peaks: dict[str, int] = {}
    for host, plan in crew.plans.items():
        if plan.drive is None and plan.memory_bytes is None:
            continue
        try:
            usage = _USAGE.validate_python(crew.call(host, "usage"))
        except LaggardError as error:
            _log.warning("not counted: %s", error)
            continue
        if usage.drive is not None:
            drives[host] = usage.drive
        if usage.peak_bytes is not None:
            peaks[host] = usage.peak_bytes
    return drives, peaks


def controller_clock(crew: Crew, head: str) -> ClockFit:
    """From this machine's CLOCK_MONOTONIC to the head's, by questions over the agent's own line."""
    exchanges = []
    for _ in range(_CLOCK_ASKS):
        sent_ns = time.monotonic_ns()
        there_ns = int(str(crew.call(head, "now")))
        exchanges.append(Exchange(sent_ns, there_ns, there_ns, time.monotonic_ns()))
    return fit_clock(exchanges)


def _here(clock: ClockFit, reference_ns: int) -> int:
    return int(clock.to_local(np.array([reference_ns], dtype=np.int64))[0])


@dataclass(frozen=True)
class _RemoteShares:
    """Lets the scheduler change shares on nodes (a `ShareSetter`)."""

    crew: Crew
    clock: ClockFit

    def set_share(self, host: str, share: float) -> int:
        """Give a host another share; returns CLOCK_MONOTONIC nanoseconds, of this machine, when it
        was in effect.
        """
        return _here(self.clock, int(str(self.crew.call(host, "set_share", {"share": share}))))


@dataclass(frozen=True)
class _RemoteDrives:
    """Lets the scheduler change drives on nodes (a `DriveSetter`)."""

    crew: Crew
    clock: ClockFit

    def set_limits(self, host: str, limits: DriveLimits) -> int:
        """Give a host's drive other limits; returns CLOCK_MONOTONIC nanoseconds, of this machine,
        when they were in effect.
        """
        return _here(self.clock, int(str(self.crew.call(host, "set_drive", asdict(limits)))))
