"""Cells of a campaign on machines that are reserved once and kept from one cell to the next.

    scenarios = {setup.digest: load_scenario(...) for setup in setups}
    machines = SharedMachines(testbed, scenarios, folder, given_options, node_hours)
    with reserve_cells(machines, lambda options: ProcessRunner(..., options)) as runner:
        for cell in cells:
            if (reason := runner.find_stop_reason(cell)) is not None:
                break
            runner.run(cell, token)

Nothing is reserved before the first cell. Every cell is a `laggard run` of its own in these
machines: it has its run folder, prepares, shapes and verifies its hosts anew, and undoes that.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NoReturn, Protocol, TypeVar

from laggard.campaign.cell_runners.reservation_rules import (
    MeasuredDurations,
    NextStep,
    ReservationLimits,
    choose_next_step,
)
from laggard.campaign.run_subprocess import SubprocessRun
from laggard.core.errors import EXIT_INTERRUPTED, DeploymentError, InputError
from laggard.core.run_schema import ReservedJob
from laggard.core.text.terminal_output import print_text
from laggard.remote.destroy import destroy_reservations
from laggard.remote.provision import fetch_wheels_early, plan_machines
from laggard.remote.reservations_file import (
    ReservationRecord,
    load_reservations,
    lock_reservations,
    store_reservation,
)
from laggard.remote.testbeds.remote_testbed import (
    MachinePlan,
    RemoteTestbed,
    ReservationSize,
    SharedReservation,
)
from laggard.run_folder.store import new_run_id
from laggard.scenario.load import Scenario
from laggard.supervision.interrupts import finish_before_interrupt, interrupt_on_signals


class PlannedCell(Protocol):
    """Cell of a campaign."""

    @property
    def setup_digest(self) -> str:
        """Digest of its setup, which its repeats share."""


CellT = TypeVar("CellT", bound=PlannedCell)
CellT_contra = TypeVar("CellT_contra", bound=PlannedCell, contravariant=True)


class StartsCells(Protocol[CellT_contra]):
    """Runner of cells that knows nothing of reservations."""

    def run(self, cell: CellT_contra, token: str) -> SubprocessRun:
        """Run a cell to its end."""


@dataclass(frozen=True)
class SharedMachines:
    """Machines of a campaign.

    Attributes:
        testbed: testbed with its options.
        scenarios: scenario of every setup that has cells to run, by the setup's digest.
        folder: folder of the campaign, which gets the record of its reservations.
        given_options: options that the user gave for every run, each one word.
        budget_node_hours: node-hours of all reservations of the campaign; None for no limit.
    """

    testbed: RemoteTestbed
    scenarios: Mapping[str, Scenario]
    folder: Path
    given_options: tuple[str, ...] = ()
    budget_node_hours: float | None = None


@contextmanager
def reserve_cells(
    machines: SharedMachines, make_runner: Callable[[tuple[str, ...]], StartsCells[CellT]]
) -> Iterator[ReservedCells[CellT]]:
    """Yield a runner of cells; what it has reserved is released however the body ends.

    Args:
        machines: testbed, scenarios and limits.
        make_runner: function that makes the runner of a cell from the options of its `laggard run`.

    Raises:
        ScenarioError: the testbed does not support a scenario.
        InputError: the scenarios do not fit into one reservation, another process may hold
            machines for this campaign, or the record of its reservations is damaged.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP arrived.
    """
    testbed = machines.testbed
    plans = {key: plan_machines(each, testbed) for key, each in machines.scenarios.items()}
    stop_times_s = {key: _get_stop_time_s(each) for key, each in machines.scenarios.items()}
    size = testbed.size_reservation(list(plans.values())) if plans else ReservationSize()
    limits = ReservationLimits(
        size.nodes, size.walltime_s, size.renewable, machines.budget_node_hours
    )
    with ExitStack() as stack:
        if not stack.enter_context(lock_reservations(machines.folder)):
            raise InputError(
                f"{machines.folder}: another process holds machines for this campaign — wait for"
                " its end, or end it"
            )
        runner = ReservedCells(machines, make_runner, plans, stop_times_s, limits)
        stack.enter_context(interrupt_on_signals(runner.end_at_once))
        stack.callback(runner.release)
        runner.release_leftovers()
        yield runner


def _get_stop_time_s(scenario: Scenario) -> float | None:
    return scenario.workload.stop.time_s if scenario.trains else None


@dataclass
class ReservedCells(Generic[CellT]):
    """Runner of cells on machines that it reserves; made by `reserve_cells`.

    Attributes:
        machines: testbed, scenarios and limits.
        make_runner: function that makes the runner of a cell from its options.
        plans: machine plan of every setup.
        stop_times_s: stopping rule of the training of every setup; None without one.
        limits: limits of the reservations.
    """

    machines: SharedMachines
    make_runner: Callable[[tuple[str, ...]], StartsCells[CellT]]
    plans: Mapping[str, MachinePlan]
    stop_times_s: Mapping[str, float | None]
    limits: ReservationLimits
    _durations: MeasuredDurations = field(default_factory=MeasuredDurations)
    _held: SharedReservation | None = None
    _is_fresh: bool = False
    _record: ReservationRecord | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def starter_pid(self) -> int:
        """Process id of the parent of every run."""
        return os.getpid()

    def find_stop_reason(self, cell: CellT) -> str | None:
        """Return why no further cell may start; None if this one may."""
        return self._choose_step(cell).reason or None

    def run(self, cell: CellT, token: str) -> SubprocessRun:
        """Run a cell, in another reservation if it does not fit into the present one.

        Training that the end of the walltime cut off is repeated in a new reservation, unless it
        had a whole one.

        Raises:
            DeploymentError: the testbed did not give the machines, or the limits of the campaign
                do not allow another reservation.
        """
        while True:
            held = self._prepare(cell)
            was_fresh, self._is_fresh = self._is_fresh, False
            options = held.build_run_options(
                self.plans[cell.setup_digest], self.machines.given_options
            )
            began_s = time.monotonic()
            ended = self.make_runner(options).run(cell, token)
            elapsed_s = time.monotonic() - began_s
            if not _was_cut_off(ended):
                if ended.status == 0:
                    self._durations = self._durations.add(cell.setup_digest, elapsed_s)
                return ended
            # It would have taken longer, by an unknown time.
            self._durations = self._durations.add(cell.setup_digest, elapsed_s + 1.0)
            if was_fresh or self._choose_step(cell).action != "reserve":
                return ended

    def _prepare(self, cell: CellT) -> SharedReservation:
        step = self._choose_step(cell)
        if step.action == "stop":
            raise DeploymentError(step.reason)
        if step.action == "reserve" or self._held is None:
            self.release()
            return self._reserve()
        return self._held

    def release(self) -> None:
        """Release the machines that are held; a signal does not stop this."""
        self._held = None
        with finish_before_interrupt(self.end_at_once):
            self._stack.close()

    def release_leftovers(self) -> None:
        """Release what an earlier call of the campaign, which was killed, still holds."""
        if destroy_reservations(self.machines.folder).held:
            raise DeploymentError(
                f"{self.machines.folder}: an earlier call of this campaign may still hold nodes —"
                f" try again, or run `laggard destroy {self.machines.folder}`"
            )

    def end_at_once(self) -> NoReturn:
        """End this process after a second signal, and state which machines are still held."""
        jobs = () if self._record is None else self._record.jobs
        held = ", ".join(f"{job.site}:{job.job_id or '?'}" for job in jobs if not job.released)
        rest = f"; it still holds {held}: run `laggard destroy {self.machines.folder}`"
        print_text(f"error: ended at once by a second signal{rest if held else ''}", err=True)
        os._exit(EXIT_INTERRUPTED)

    def _choose_step(self, cell: CellT) -> NextStep:
        estimate = self._durations.estimate(cell.setup_digest, self.stop_times_s[cell.setup_digest])
        used = sum(
            each.count_node_seconds(time.time()) for each in load_reservations(self.machines.folder)
        )
        return choose_next_step(estimate, self._count_seconds_left(), used, self.limits)

    def _count_seconds_left(self) -> float | None:
        if self._held is None:
            return None
        end_s = self._held.walltime_end_s
        return math.inf if end_s is None else end_s - time.monotonic()

    def _reserve(self) -> SharedReservation:
        """Reserve machines until `release`; the reservation is recorded before it is made."""
        testbed, walltime_s = self.machines.testbed, self.limits.walltime_s or 0.0
        record = ReservationRecord(
            id=new_run_id(),
            testbed=testbed.name,
            nodes=self.limits.nodes,
            walltime_s=walltime_s,
            began_s=time.time(),
        )
        self._store(record)
        self._stack.callback(self._record_end)
        plans = list(self.plans.values())
        fetch_wheels_early(testbed.name, plans)
        held = self._stack.enter_context(
            testbed.reserve_together(plans, record.id, self._record_jobs)
        )
        if self._record is not None:
            # A reservation may have waited long for its nodes.
            self._store(self._record.model_copy(update={"began_s": time.time()}))
        self._held, self._is_fresh = held, True
        return held

    def _record_jobs(self, jobs: tuple[ReservedJob, ...]) -> None:
        if self._record is not None:
            self._store(self._record.model_copy(update={"jobs": jobs}))

    def _record_end(self) -> None:
        record = self._record
        if record is not None and all(job.released for job in record.jobs):
            self._store(record.model_copy(update={"ended_s": time.time()}))

    def _store(self, record: ReservationRecord) -> None:
        self._record = record
        store_reservation(self.machines.folder, record)


def _was_cut_off(ended: SubprocessRun) -> bool:
    """Return whether the end of the walltime stopped the training of a run."""
    outcome = (ended.result or {}).get("outcome")
    return isinstance(outcome, dict) and outcome.get("stopped_by") == "walltime"
