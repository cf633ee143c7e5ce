"""Reservation, preparation and release of Grid'5000 nodes through EnOSlib's provider.

EnOSlib submits jobs (`async_init` of one `G5k` per site), assigns nodes to roles, deploys systems
and opens root's account. This module adds what EnOSlib lacks:

- It finds a common start for several sites with any walltime. EnOSlib's own method fails from 24
  hours on.
- It limits every wait and names the nodes that failed.
- It releases everything after a failure and never leaves an unrecorded job.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from laggard.core.errors import DeploymentError, InputError, LaggardError, escape_unprintable
from laggard.core.hosts import Host
from laggard.core.run_schema import ReservedJob
from laggard.layers_services.g5k.api import (
    OVER,
    Job,
    Pace,
    get_job_time_s,
    job_of,
    live_jobs,
    retry_listing,
)
from laggard.layers_services.g5k.api_errors import explain_errors
from laggard.layers_services.g5k.configuration import build_conf, client_is_ready
from laggard.layers_services.g5k.nodes import provision_jobs
from laggard.layers_services.g5k.release import (
    destroy,
    how_to_release,
    release_jobs,
    still_held,
    to_reserved_job,
)
from laggard.layers_services.g5k.request import G5kPlan
from laggard.layers_services.g5k.usage_rules import DATE, ZONE
from laggard.layers_services.machine import Machine
from laggard.layers_services.ssh.host_keys import ReservationKeys

if TYPE_CHECKING:
    from enoslib import G5k, Networks, Roles

log = logging.getLogger(__name__)

Told = Callable[[tuple[ReservedJob, ...]], None]

PATIENCE_S = 900.0
SLOT_TRIES = 3
FIRST_SLOT_S = 60
"""Seconds from now to the earliest common start of several sites. The start must still be in the
future when the job at the last site is submitted."""


@dataclass(frozen=True)
class HeldNodes:
    """Nodes of running jobs.

    Attributes:
        jobs: jobs that hold the nodes
        owned: True if the jobs were submitted here; jobs that existed before are kept
        ends_at_s: Unix time at which the first of the jobs ends
        pace: timeouts and retries of API requests
    """

    jobs: tuple[ReservedJob, ...]
    owned: bool
    ends_at_s: float
    pace: Pace = field(default_factory=Pace, kw_only=True)

    def release(self) -> tuple[ReservedJob, ...]:
        """Release the nodes and every other job of the same name.

        Jobs that existed before are kept.

        Returns:
            The jobs afterwards, as `release.release_jobs` does.
        """
        if not self.owned:
            return self.jobs
        return destroy(self.jobs, self.jobs[0].name, [job.site for job in self.jobs], self.pace)


@dataclass(frozen=True)
class Reservation(HeldNodes):
    """Nodes of running jobs, prepared for the hosts of a scenario.

    Attributes:
        machines: one machine per host, in the order of the hosts, with root access
        roles: EnOSlib's roles with E2Clab's names; every host's alias is its service key
        networks: EnOSlib's networks
        deployed: True if a system was deployed on the nodes
    """

    machines: tuple[Machine, ...]
    roles: Roles
    networks: Networks
    deployed: bool


class _Ledger:
    """Record of a reservation's jobs; every change of it is reported."""

    def __init__(self, plan: G5kPlan, name: str, on_jobs_changed: Told, pace: Pace) -> None:
        self.name, self.on_jobs_changed, self.pace = name, on_jobs_changed, pace
        self.nodes = {
            site: sum(g.nodes for g in plan.groups if g.site == site) for site in plan.sites
        }
        self.jobs: dict[str, ReservedJob] = {}
        self.asked_twice: set[str] = set()

    def expect(self, site: str) -> None:
        """Record a job before its submission to a site, with number 0.

        A run that is killed after this may leave a job of this name there.
        """
        self.jobs[site] = ReservedJob(
            testbed="g5k", site=site, job_id=0, name=self.name, nodes=self.nodes[site]
        )
        self._report_jobs()

    def made(self, job: Job) -> None:
        """Record a job that has a number."""
        self.jobs[job.site] = to_reserved_job(job, self.name, self.nodes[job.site])
        self._report_jobs()

    def end_twins(self, jobs: Sequence[Job]) -> None:
        """End duplicates of these jobs.

        A submission that seemed to be lost may have been executed late, in addition to its
        repetition.
        """
        own = {int(job.uid) for job in jobs}
        for site in self.asked_twice:
            twins = [
                job for job in live_jobs(site, self.pace, self.name) if int(job.uid) not in own
            ]
            release_jobs((to_reserved_job(job, self.name, 0) for job in twins), self.pace)

    def give_back(self) -> tuple[ReservedJob, ...]:
        """End every job of this name at the recorded sites and return those that may remain."""
        if self.jobs:
            known = [job for job in self.jobs.values() if job.job_id]
            after = destroy(known, self.name, list(self.jobs), self.pace)
            # A site without a live job of this name holds no nodes.
            gone = [
                job
                for site, job in self.jobs.items()
                if site not in {other.site for other in after}
            ]
            self.jobs = {job.site: job for job in (*_over(gone), *after)}
            self.on_jobs_changed((*_over(gone), *after))
            return still_held(after)
        return ()

    def _report_jobs(self) -> None:
        self.on_jobs_changed(tuple(self.jobs.values()))


def reserve(
    plan: G5kPlan,
    hosts: Sequence[Host],
    job_name: str,
    on_jobs_changed: Told,
    run_folder: Path,
    patience_s: float = PATIENCE_S,
    pace: Pace | None = None,
    auto_jump: bool | None = None,
) -> Reservation:
    """Reserve the nodes of a plan, or use the running jobs that it names, and give root access.

    Args:
        plan: reservation plan of these hosts
        hosts: all hosts of the scenario, in order
        job_name: name on the testbed; unique to the run, so that jobs of a killed run are found by
            it
        on_jobs_changed: called with all recorded jobs before each submission (number 0, since only
            the name is known), as soon as the job has its number, and after a release; not called
            for jobs that existed before
        run_folder: folder that receives the known-hosts file of this reservation
        patience_s: longest wait for a job to start, counted from its date if it has one
        pace: timeouts and retries of API requests
        auto_jump: True to reach nodes through Grid'5000's access machine; None uses it if this
            machine is outside of Grid'5000

    Returns:
        The machines, reachable by SSH as root.

    Raises:
        InputError: a named job does not exist or does not fit, or ssh would misinterpret the path
            of the run folder
        PrerequisiteError: the API rejects the user, or there is no SSH key to deploy
        DeploymentError: the testbed did not provide the nodes; everything that was reserved has
            been released, or the message names the job and the command that releases it; this is
            also true of any other exception, such as an interrupt
    """
    pace = pace or Pace()
    keys = ReservationKeys.create(run_folder, deployed=plan.deployed)
    client_is_ready(pace, auto_jump)
    if plan.reused:
        jobs = _find_running_jobs(plan, patience_s, pace)
        return _ready(plan, hosts, jobs, job_name, keys, patience_s, pace)
    ledger = _Ledger(plan, job_name, on_jobs_changed, pace)
    with _released_on_failure(ledger):
        jobs = _start_jobs(plan, ledger, patience_s, pace)
        return _ready(plan, hosts, jobs, job_name, keys, patience_s, pace)


def hold_nodes(
    plan: G5kPlan,
    job_name: str,
    on_jobs_changed: Told,
    patience_s: float = PATIENCE_S,
    pace: Pace | None = None,
) -> HeldNodes:
    """Reserve the nodes of a plan, or use the running jobs that it names, and leave them as is.

    Runs that name the jobs with `G5kOptions.jobs` prepare the nodes; see `reserve` for the
    arguments.

    Raises:
        InputError: a named job does not exist or does not fit
        PrerequisiteError: the API rejects the user
        DeploymentError: the testbed did not provide the nodes; as in `reserve`, everything that was
            reserved has then been released
    """
    pace = pace or Pace()
    client_is_ready(pace)
    if plan.reused:
        jobs = _find_running_jobs(plan, patience_s, pace)
        return _held(plan, jobs, "", pace)
    ledger = _Ledger(plan, job_name, on_jobs_changed, pace)
    with _released_on_failure(ledger):
        return _held(plan, _start_jobs(plan, ledger, patience_s, pace), job_name, pace)


def _find_running_jobs(plan: G5kPlan, patience_s: float, pace: Pace) -> tuple[Job, ...]:
    jobs = tuple(_running_job(plan, each.site, each.job_id, pace) for each in plan.reused)
    _wait_until_running(jobs, plan, patience_s, pace)
    return jobs


def _start_jobs(plan: G5kPlan, ledger: _Ledger, patience_s: float, pace: Pace) -> tuple[Job, ...]:
    jobs = _submitted(plan, ledger.name, ledger, patience_s, pace)
    _wait_until_running(jobs, plan, patience_s, pace)
    ledger.end_twins(jobs)
    return jobs


@contextmanager
def _released_on_failure(ledger: _Ledger) -> Iterator[None]:
    try:
        yield
    # Interrupts count too: no exception may leave nodes reserved.
    except BaseException as error:
        left = ledger.give_back()
        if left and isinstance(error, LaggardError):
            raise DeploymentError(f"{error}\n{how_to_release(left)}") from error
        raise


def _submitted(
    plan: G5kPlan, job_name: str, ledger: _Ledger, patience_s: float, pace: Pace
) -> tuple[Job, ...]:
    import enoslib
    from enoslib.errors import InvalidReservationTime

    earliest = time.time() + FIRST_SLOT_S
    for last in (*[False] * (SLOT_TRIES - 1), True):
        conf = retry_listing(lambda: build_conf(plan, job_name), "the clusters", pace)
        providers = {site: enoslib.G5k(conf.restrict_to(site)) for site in plan.sites}
        try:
            with explain_errors(plan):
                start = _common_start(
                    plan, list(providers.values()), int(earliest), patience_s, pace
                )
                return tuple(
                    _submit(provider, site, start, ledger, pace)
                    for site, provider in providers.items()
                )
        except DeploymentError as error:
            refused = error.__cause__
            if (
                last
                or plan.reservation is not None
                or not isinstance(refused, InvalidReservationTime)
            ):
                raise
            # Another user took the slot between the query of the schedule and the submission.
            # Search again from the time that OAR suggests.
            earliest = max(earliest + FIRST_SLOT_S, refused.datetime.timestamp())
            # Trying again while jobs may still exist could reserve the nodes twice.
            if ledger.give_back():
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def _over(jobs: Sequence[ReservedJob]) -> tuple[ReservedJob, ...]:
    return tuple(job.model_copy(update={"released": True}) for job in jobs)


def _common_start(
    plan: G5kPlan, providers: Sequence[G5k], earliest: int, patience_s: float, pace: Pace
) -> int | None:
    """Return the common start of all sites; None if a single site can start at any time."""
    from enoslib.infra.providers import find_slot

    if plan.start is not None:
        return int(plan.start.timestamp())
    if len(providers) == 1:
        return None
    return int(
        retry_listing(
            lambda: find_slot(providers, int(patience_s), earliest), "the clusters' schedules", pace
        )
    )


def _submit(provider: G5k, site: str, start: int | None, ledger: _Ledger, pace: Pace) -> Job:
    attempts = itertools.count()
    # Recorded before the submission, so that a run that is killed during it can still be released.
    ledger.expect(site)

    def submit() -> Job:
        # A submission whose answer was lost may have been executed. EnOSlib searches for the name
        # too, but not in every state.
        if next(attempts):
            ledger.asked_twice.add(site)
            there = live_jobs(site, pace, ledger.name)
            if there:
                return there[0]
        provider.async_init(start_time=start)
        jobs: Sequence[Job] = provider.driver.jobs
        return jobs[0]

    job = retry_listing(submit, f"a job at {site}", pace)
    ledger.made(job)
    return job


def _running_job(plan: G5kPlan, site: str, job_id: int, pace: Pace) -> Job:
    """Return an existing job if it can be used.

    Raises:
        InputError: it cannot be used
    """
    from enoslib.infra.enos_g5k.g5k_api_utils import get_api_username

    job = job_of(site, job_id, pace)
    what, user = f"job {job_id} at {site}", get_api_username()
    owner = str(getattr(job, "user_uid", user))
    if job.state in OVER:
        raise InputError(f"{what} is over ({job.state}) — give a running job, or omit --job")
    if owner != user:
        raise InputError(f"{what} belongs to {owner} and you are {user} — give a job of your own")
    types = set(getattr(job, "types", ()))
    if plan.deployed and "deploy" not in types:
        raise InputError(
            f"{what} is not of type `deploy`, so {plan.env_name} cannot be deployed on its nodes —"
            " omit --env-name and `env_name`"
        )
    if not plan.deployed and "deploy" in types:
        raise InputError(
            f"{what} is of type `deploy`, so its nodes need a system — add --env-name debian12-nfs,"
            " for example"
        )
    return job


def _wait_until_running(jobs: Sequence[Job], plan: G5kPlan, patience_s: float, pace: Pace) -> None:
    # The wall clock may be set during the wait, so it is read once.
    until_start_s = max(0.0, plan.start.timestamp() - time.time()) if plan.start else 0.0
    deadline_s = time.monotonic() + until_start_s + patience_s
    waiting = list(jobs)
    while True:
        for job in waiting:
            retry_listing(job.refresh, f"job {job.uid} at {job.site}", pace)
            if job.state in OVER:
                raise DeploymentError(
                    f"job {job.uid} at {job.site} ended before it started (state"
                    f" {job.state}){_message(job)}"
                )
        waiting = [job for job in waiting if job.state != "running"]
        if not waiting:
            return
        if time.monotonic() >= deadline_s:
            names = "; ".join(f"job {job.uid} at {job.site}, {_expected(job)}" for job in waiting)
            raise DeploymentError(
                f"not started within {patience_s:g} s: {names} — raise"
                " --reservation-timeout, request fewer"
                " nodes, or choose a later time"
            )
        time.sleep(min(pace.poll_s, max(0.0, deadline_s - time.monotonic())))


def _expected(job: Job) -> str:
    scheduled = get_job_time_s(job, "scheduled_at")
    if scheduled is None:
        return f"state {job.state}, for which Grid'5000 predicts no start"
    return (
        "whose start Grid'5000 predicts at"
        f" {datetime.fromtimestamp(scheduled, ZoneInfo(ZONE)).strftime(DATE)}"
    )


def _message(job: Job) -> str:
    message = getattr(job, "message", None)
    return f": {escape_unprintable(str(message)[:300])}" if message else ""


def _ready(
    plan: G5kPlan,
    hosts: Sequence[Host],
    jobs: Sequence[Job],
    job_name: str,
    keys: ReservationKeys,
    patience_s: float,
    pace: Pace,
) -> Reservation:
    try:
        provisioned = provision_jobs(plan, hosts, jobs, job_name, keys, patience_s, pace)
    except DeploymentError as error:
        # Nodes of a job that has ended are unreachable; report this cause, not the symptom.
        ended = [job for job in jobs if _is_over(job, pace)]
        if not ended:
            raise
        names = ", ".join(f"job {job.uid} at {job.site}" for job in ended)
        rule = "ended during the preparation of its nodes: its walltime expired, or a user ended it"
        raise DeploymentError(f"{names} {rule} — reserve a longer walltime") from error
    held = _held(plan, jobs, job_name, pace)
    return Reservation(
        machines=provisioned.machines,
        roles=provisioned.roles,
        networks=provisioned.networks,
        jobs=held.jobs,
        owned=held.owned,
        ends_at_s=held.ends_at_s,
        deployed=plan.deployed,
        pace=pace,
    )


def _held(plan: G5kPlan, jobs: Sequence[Job], job_name: str, pace: Pace) -> HeldNodes:
    ends = [
        (get_job_time_s(job, "started_at") or time.time())
        + (get_job_time_s(job, "walltime") or plan.walltime_s)
        for job in jobs
    ]
    owned = not plan.reused
    return HeldNodes(
        jobs=tuple(
            to_reserved_job(job, job_name if owned else str(getattr(job, "name", "")), 0)
            for job in jobs
        ),
        owned=owned,
        ends_at_s=min(ends),
        pace=pace,
    )


def _is_over(job: Job, pace: Pace) -> bool:
    retry_listing(job.refresh, f"job {job.uid} at {job.site}", pace)
    return job.state in OVER
