"""Grid'5000: nodes reserved through OAR by EnOSlib, metered by kwollect."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from laggard.layers_services.e2clab.manager_support import ManagerSupport
from laggard.remote.testbeds.remote_testbed import (
    CommandOption,
    JobsRecorder,
    MachinePlan,
    OptionValue,
    RemoteTestbed,
    ReservationSize,
    ReservedNodes,
    SharedReservation,
)

if TYPE_CHECKING:
    from laggard.core.hosts import Host
    from laggard.core.run_schema import HostEnergy, ReservedJob
    from laggard.layers_services.environment.prepare import Store
    from laggard.layers_services.environment.wheel_plan import Platform
    from laggard.layers_services.g5k.description import G5kDescription
    from laggard.layers_services.g5k.request import G5kOptions, G5kPlan
    from laggard.layers_services.g5k.reserve import Reservation
    from laggard.layers_services.machine import Machine
    from laggard.run_folder.journal import Journal
    from laggard.scenario.load import Scenario

RESERVATION_TIMEOUT_S = 900.0
API_CONFIGURATION = ".python-grid5000.yaml"
"""File in the user's home with the account, as the python-grid5000 client reads it."""


@dataclass(frozen=True)
class ReservationPlan:
    """Reservation that a run would make.

    Attributes:
        request: nodes, walltime and job options.
        hosts: all hosts of the scenario, in order.
        timeout_s: longest wait for the reservation to start.
        addresses: empty mapping, since the nodes are not known yet.
    """

    request: G5kPlan
    hosts: tuple[Host, ...]
    timeout_s: float
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about settings of the scenario that have no effect on Grid'5000."""
        return tuple(str(warning) for warning in self.request.warnings)

    @property
    def expected_platforms(self) -> tuple[Platform, ...] | None:
        """Platforms of the nodes, as far as they are known; None if no nodes are reserved."""
        from laggard.layers_services.environment.expected_platforms import find_platform
        from laggard.layers_services.g5k.reference import load_reference

        if self.request.reused:
            return None
        system = self.request.env_name or ""
        clusters = load_reference().by_name
        found = {
            find_platform(system, clusters[group.cluster].architecture)
            for group in self.request.groups
            if group.cluster in clusters
        }
        return tuple(each for each in found if each is not None)

    def describe(self) -> G5kDescription:
        """Return the nodes, the usage policy's verdict and an estimate of the start.

        The estimate needs an API account on this machine; without one it is empty.
        """
        from datetime import UTC, datetime

        from laggard.layers_services.g5k.description import describe_g5k, start_estimate

        now, start = datetime.now(UTC), ""
        if not self.request.reused and (Path.home() / API_CONFIGURATION).exists():
            start = start_estimate(self.request, now).reason
        return describe_g5k(self.request, now, start)

    @contextmanager
    def reserve_nodes(self, journal: Journal) -> Iterator[ReservedNodes]:
        """Hold the nodes for the body of a `with`, and release them however it ends.

        Jobs that existed before the run are left running.

        Raises:
            InputError: a named job cannot be used.
            DeploymentError: Grid'5000 did not give the nodes.
        """
        from laggard.layers_services.g5k.release import job_name
        from laggard.layers_services.g5k.reserve import reserve

        def record_jobs(jobs: tuple[ReservedJob, ...]) -> None:
            journal.update(jobs=jobs)

        with journal.stage("reserve", f"{len(self.hosts)} nodes of Grid'5000"):
            name = job_name(journal.record.id)
            reservation = reserve(
                self.request, self.hosts, name, record_jobs, journal.folder.path, self.timeout_s
            )
        try:
            # `ends_at_s` is a Unix time; the run compares monotonic times.
            end_s = time.monotonic() + reservation.ends_at_s - time.time()
            machines = reservation.machines
            yield ReservedNodes(machines, end_s, _find_home_stores(machines))
        finally:
            _release_reservation(reservation, journal)


def _release_reservation(reservation: Reservation, journal: Journal) -> None:
    """Release, record the jobs, and warn about those that are still held."""
    from laggard.layers_services.g5k.release import how_to_release, still_held

    with journal.stage("release"):
        jobs = reservation.release()
    if not reservation.owned:
        return
    journal.update(jobs=jobs)
    if held := still_held(jobs):
        journal.update(warnings=(*journal.record.warnings, how_to_release(held)))


def _find_home_stores(machines: tuple[Machine, ...]) -> Mapping[str, Store]:
    """Return the user's home as the store for wheels.

    A site's nodes share it by NFS, and root may not write to it.
    """
    from enoslib.infra.enos_g5k.g5k_api_utils import get_api_username

    from laggard.layers_services.environment.prepare import site_stores

    return site_stores(machines, get_api_username())


def _join_requests(plans: Sequence[MachinePlan]) -> G5kPlan:
    from laggard.layers_services.g5k.shared_plan import join_plans

    return join_plans([plan.request for plan in plans if isinstance(plan, ReservationPlan)])


@dataclass(frozen=True)
class SharedJobs(SharedReservation):
    """Jobs of Grid'5000 that are kept for several runs."""

    def build_run_options(self, plan: MachinePlan, given: Sequence[str]) -> tuple[str, ...]:
        """Return the user's options, with the jobs at the sites of a plan; see the base class."""
        sites = plan.request.sites if isinstance(plan, ReservationPlan) else ()
        replaced = ("--job=", "--reservation=")
        return (
            *(word for word in given if not word.startswith(replaced)),
            *(f"--job={job.site}:{job.job_id}" for job in self.jobs if job.site in sites),
        )


@dataclass(frozen=True)
class G5kTestbed(RemoteTestbed):
    """Grid'5000 testbed.

    Attributes:
        reservation: options of the reservation; None for the scenario's settings alone.
        reservation_timeout_s: longest wait for a reservation to start.
    """

    name: ClassVar[str] = "g5k"
    managers: ClassVar[ManagerSupport] = ManagerSupport(
        "g5k", own_machines=True, kwollect=True, docker_cache=True
    )
    options: ClassVar[tuple[CommandOption, ...]] = (
        CommandOption("--walltime", "length of the reservation; may exceed a day.", "HH:MM:SS"),
        CommandOption("--reservation", "start time, in Paris time.", "'YYYY-MM-DD HH:MM:SS'"),
        CommandOption("--queue", "OAR queue."),
        CommandOption("--project", "OAR project that the reservation is charged to."),
        CommandOption("--job-type", "additional OAR job type, such as exotic.", kind="texts"),
        CommandOption("--env-name", "Kadeploy environment to deploy."),
        CommandOption("--kavlan", "put the nodes into their own VLAN.", kind="switch"),
        CommandOption("--job", "use a running job and do not release it.", "[SITE:]ID", "texts"),
        CommandOption(
            "--reservation-timeout",
            "longest wait for the nodes, in seconds.",
            kind="seconds",
            default=RESERVATION_TIMEOUT_S,
        ),
    )

    reservation: G5kOptions | None = None
    reservation_timeout_s: float = RESERVATION_TIMEOUT_S

    @classmethod
    def from_options(cls, values: Mapping[str, OptionValue]) -> Self:
        """Create the testbed from the options of a reservation."""
        from laggard.layers_services.g5k.request import G5kOptions

        # Options that may be repeated are singular on the command line and plural in `G5kOptions`.
        fields = {"job": "jobs", "job_type": "job_types"}
        given = {fields.get(name, name): value for name, value in values.items()}
        timeout_s = float(str(given.pop("reservation_timeout", RESERVATION_TIMEOUT_S)))
        # The options above have the types of the fields of these names.
        return cls(G5kOptions(**given), timeout_s)  # type: ignore[arg-type]

    def plan_machines(self, scenario: Scenario) -> ReservationPlan:
        """Plan the reservation of one node per host.

        Raises:
            InputError: the options or the layers do not describe a valid reservation.
        """
        from laggard.layers_services.g5k.plan import plan_g5k
        from laggard.layers_services.g5k.request import G5kOptions

        options = self.reservation or G5kOptions()
        request = plan_g5k(scenario.layers, options, scenario.sources.layers_services)
        return ReservationPlan(request, tuple(scenario.hosts), self.reservation_timeout_s)

    def has_power_meters(self, machines: Sequence[Machine]) -> bool:
        """Return whether the reference data lists a power meter for at least one of these nodes."""
        from laggard.layers_services.g5k.energy import metered

        return bool(metered(machines))

    def measure_energy(
        self, machines: Sequence[Machine], start_s: float, end_s: float
    ) -> tuple[HostEnergy, ...]:
        """Return the energy of every metered node in joules, as measured by kwollect.

        Raises:
            DeploymentError: the API does not answer.
        """
        from laggard.layers_services.g5k.energy import measure_energy

        return measure_energy(machines, start_s, end_s)

    @contextmanager
    def reserve_together(
        self, plans: Sequence[MachinePlan], owner_id: str, on_jobs_changed: JobsRecorder
    ) -> Iterator[SharedReservation]:
        """Hold the nodes that the largest of these plans needs, per cluster, and release them.

        Jobs that existed before are left running.

        Raises:
            InputError: the plans do not fit into one reservation, or a named job cannot be used.
            DeploymentError: Grid'5000 did not give the nodes.
        """
        from laggard.layers_services.g5k.release import job_name
        from laggard.layers_services.g5k.reserve import hold_nodes

        held = hold_nodes(
            _join_requests(plans), job_name(owner_id), on_jobs_changed, self.reservation_timeout_s
        )
        try:
            # `ends_at_s` is a Unix time; runs compare monotonic times.
            end_s = time.monotonic() + held.ends_at_s - time.time()
            yield SharedJobs(end_s, held.jobs)
        finally:
            jobs = held.release()
            if held.owned:
                on_jobs_changed(jobs)

    def size_reservation(self, plans: Sequence[MachinePlan]) -> ReservationSize:
        """Return the size of one reservation for these plans, or of none if jobs are named.

        Raises:
            InputError: the plans do not fit into one reservation.
        """
        request = _join_requests(plans)
        if request.reused:
            return ReservationSize()
        return ReservationSize(request.nodes, request.walltime_s, renewable=True)

    def release_jobs(self, owner_id: str, jobs: Sequence[ReservedJob]) -> tuple[ReservedJob, ...]:
        """Release the recorded jobs and all other jobs with the name of this run or campaign.

        Raises:
            InputError: the record lists a job of another owner, which was not released.
            LaggardError: the API refuses the user, or does not answer.
        """
        from laggard.layers_services.g5k.release import destroy, job_name, still_held

        sites = tuple(dict.fromkeys(job.site for job in jobs))
        return destroy(still_held(jobs), job_name(owner_id), sites)

    def format_held_jobs(self, jobs: Sequence[ReservedJob]) -> str:
        """Return the command that ends each job on its site's frontend."""
        from laggard.layers_services.g5k.release import how_to_release

        return how_to_release(jobs)
