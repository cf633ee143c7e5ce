"""Experiment on real machines that trains nothing: its plays are run on the verified continuum."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from laggard.core.errors import LaggardError
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.dynamics import EventRecord
from laggard.network_emulation.links.backend import LinkBackend
from laggard.remote.agent.operations import BEGIN_TRAINING, READ_CLOCK, START_PROCESSES
from laggard.remote.agent_pool import AgentPool
from laggard.remote.e2clab_stages import E2clabStages
from laggard.remote.supervise import RemoteSupervisor
from laggard.remote.training import (
    WALLTIME_MARGIN_S,
    RemoteRunContext,
    TrainingResult,
    create_scheduler,
    fit_controller_clock,
)
from laggard.run_folder.counters import write_counters, write_events
from laggard.run_folder.fidelity_violations import find_late_changes
from laggard.scenario.load import Scenario

_POLL_S = 0.1


@dataclass(frozen=True)
class ExperimentResult:
    """End of an experiment.

    Attributes:
        result: times and fidelity violations.
        interrupt: the user's interrupt that ended the plays of `launch` or the time after them.
    """

    result: TrainingResult
    interrupt: KeyboardInterrupt | None


def run_experiment(
    scenario: Scenario,
    agent_pool: AgentPool,
    links: LinkBackend,
    stages: E2clabStages,
    context: RemoteRunContext,
) -> ExperimentResult:
    """Run the plays of `launch`, and wait for `context.for_s` seconds.

    The timed events and the fidelity monitors start with `launch`. The wait ends early if the
    testbed is about to take its machines back.

    Raises:
        DeploymentError: a play failed, or a node or the connection to it was lost.
    """
    journal, head = context.journal, scenario.reference_host.name
    watch = RemoteSupervisor(agent_pool, ())
    agent_pool.call_all(START_PROCESSES)
    agent_pool.expect_heartbeats()
    agent_pool.call_all(BEGIN_TRAINING)
    before = links.counters()
    clock = fit_controller_clock(agent_pool, head)
    zero_ns, zero_here_ns = agent_pool.call(head, READ_CLOCK), time.monotonic_ns()
    watch.begin(zero_ns)
    began_s, interrupt = time.time(), None
    scheduler = create_scheduler(scenario, agent_pool, links, clock)
    scheduler.start(zero_here_ns)
    events: tuple[EventRecord, ...] = ()
    try:
        with _watch_nodes(watch) as failures:
            stages.run("launch")
            with journal.stage("up", f"for {context.for_s:g} s"):
                _wait(context, failures)
    except KeyboardInterrupt as error:
        interrupt = error
    finally:
        events = scheduler.stop()
        write_events(journal.folder.path, events)
    write_counters(journal.folder.path, links, before, {}, {})
    violations = (
        *watch.fidelity_monitors.violations(zero_ns),
        *find_late_changes(events, zero_here_ns, Dilation(1.0)),
    )
    return ExperimentResult(TrainingResult(began_s, time.time(), violations), interrupt)


def _wait(context: RemoteRunContext, failures: list[LaggardError]) -> None:
    """Wait for the time of the experiment, or until a node is lost.

    Raises:
        LaggardError: a node, or the connection to it, was lost.
    """
    ends_s = time.monotonic() + context.for_s
    if context.walltime_end_s is not None:
        ends_s = min(ends_s, context.walltime_end_s - WALLTIME_MARGIN_S)
    while time.monotonic() < ends_s and not failures:
        time.sleep(_POLL_S)
    if failures:
        raise failures[0]


@contextmanager
def _watch_nodes(watch: RemoteSupervisor) -> Iterator[list[LaggardError]]:
    """Hear and answer the nodes in a thread, while the plays use the calling one.

    An agent that hears nothing from its controller for long ends.

    Yields:
        The failure of a node, as soon as there is one.
    """
    failures: list[LaggardError] = []
    is_over = threading.Event()

    def listen() -> None:
        try:
            while not is_over.is_set():
                watch.check()
        except LaggardError as error:
            failures.append(error)

    thread = threading.Thread(target=listen, name="laggard-nodes", daemon=True)
    thread.start()
    try:
        yield failures
    finally:
        is_over.set()
        thread.join()
