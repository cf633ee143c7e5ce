"""Nodes of Grid'5000 through EnOSlib's own provider: reserved, waited for, provisioned, and given
back where anything fails.

EnOSlib submits (`async_init` of one `G5k` per site), maps nodes to roles, deploys systems and opens
root's account. Around it, this module keeps what it leaves open: it finds one start for several
sites whatever the walltime (EnOSlib's own way fails from 24 hours on), bounds every wait, says
which nodes failed, and never leaves a job behind that nobody knows of.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from laggard.core.errors import DeploymentError, InputError, LaggardError
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

if TYPE_CHECKING:
    from enoslib import G5k, Networks, Roles

log = logging.getLogger(__name__)

Told = Callable[[tuple[ReservedJob, ...]], None]

PATIENCE_S = 900.0
SLOT_TRIES = 3
FIRST_SLOT_S = 60
"""Several sites start together at a time that is agreed on; it has to lie ahead when the last site
is asked."""

ESTIMATE_HORIZON_S = 3 * 24 * 3600


@dataclass(frozen=True)
class Reservation:
    """Nodes that may be used until the walltime ends.

    Attributes:
        machines: one per host, in the hosts' order; root logs in.
        roles: EnOSlib's, as E2Clab names them; every host's alias is its service key.
        networks: EnOSlib's.
        jobs: what holds the nodes.
        owned: whether they were reserved here; a job that was there before stays.
        ends_at_s: Unix time at which the first of the jobs ends.
        deployed: whether the nodes run a system of their own.
        pace: how the API was asked.
    """

    machines: tuple[Machine, ...]
    roles: Roles
    networks: Networks
    jobs: tuple[ReservedJob, ...]
    owned: bool
    ends_at_s: float
    deployed: bool
    pace: Pace = field(default_factory=Pace)

    def release(self) -> tuple[ReservedJob, ...]:
        """Give the nodes back, and whatever else has the jobs' name; the jobs afterwards, as
        `release.release_jobs`.

        Jobs that were there before are left as they are.
        """
        if not self.owned:
            return self.jobs
        return destroy(self.jobs, self.jobs[0].name, [job.site for job in self.jobs], self.pace)


@dataclass(frozen=True)
class StartEstimate:
    """When a reservation could start, as the testbed's schedule stands; `start` is None where that
    is not known, for `reason`.
    """

    start: datetime | None
    reason: str


class _Ledger:
    """What a reservation holds so far; everything that changes in it is told."""

    def __init__(self, plan: G5kPlan, name: str, on_jobs_changed: Told, pace: Pace) -> None:
        self.name, self.on_jobs_changed, self.pace = name, on_jobs_changed, pace
        self.nodes = {
            site: sum(g.nodes for g in plan.groups if g.site == site) for site in plan.sites
        }
        self.jobs: dict[str, ReservedJob] = {}
        self.asked_twice: set[str] = set()

    def expect(self, site: str) -> None:
        """Before the submission to a site: a run that dies now may leave a job of this name
        there.
        """
        self.jobs[site] = ReservedJob(
            testbed="g5k", site=site, job_id=0, name=self.name, nodes=self.nodes[site]
        )
        self._report_jobs()

    def made(self, job: Job) -> None:
        """A job has a number."""
        self.jobs[job.site] = to_reserved_job(job, self.name, self.nodes[job.site])
        self._report_jobs()

    def end_twins(self, jobs: Sequence[Job]) -> None:
        """End what was made besides these jobs: a submission that seemed lost may have been carried
        out after all, late.
        """
        own = {int(job.uid) for job in jobs}
        for site in self.asked_twice:
            twins = [
                job for job in live_jobs(site, self.pace, self.name) if int(job.uid) not in own
            ]
            release_jobs((to_reserved_job(job, self.name, 0) for job in twins), self.pace)

    def give_back(self) -> tuple[ReservedJob, ...]:
        """End everything of this name at the sites that were asked for nodes; what is still
        held.
        """
        if self.jobs:
            known = [job for job in self.jobs.values() if job.job_id]
            after = destroy(known, self.name, list(self.jobs), self.pace)
            # A site that has no job of this name any more holds nothing.
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
    patience_s: float = PATIENCE_S,
    pace: Pace | None = None,
    auto_jump: bool | None = None,
) -> Reservation:
    """Reserve what a plan asks for, or take the running jobs that it names, and make the nodes
    ready for root's SSH.

    Args:
        plan: of these hosts.
        hosts: all hosts of the scenario, in order.
        job_name: on the testbed; unique to the run, so that what a killed run left is found by it.
        on_jobs_changed: is called with everything held: before each submission (number 0: only the
            name is known), as soon as the job has its number, and after a release. Not called for
            jobs that were there before.
        patience_s: longest wait for a job to start, from its date where it has one.
        pace: how patient to be with the API.
        auto_jump: reach nodes through Grid'5000's access machine; None: where this machine is
            outside.

    Returns:
        The machines, reachable by SSH as root.

    Raises:
        InputError: a job that was named does not exist or does not fit.
        PrerequisiteError: the API refuses the user, or there is no SSH key to deploy.
        DeploymentError: the testbed did not give the nodes. Whatever was reserved has been
            released, or the message tells the job and how to release it. The same holds for any
            other exception, such as an interrupt.
    """
    pace = pace or Pace()
    client_is_ready(pace, auto_jump)
    if plan.reused:
        jobs = tuple(
            _running_job(plan, reference.site, reference.job_id, pace) for reference in plan.reused
        )
        _wait_until_running(jobs, plan, patience_s, pace)
        return _ready(plan, hosts, jobs, job_name, patience_s, pace)
    ledger = _Ledger(plan, job_name, on_jobs_changed, pace)
    try:
        jobs = _submitted(plan, job_name, ledger, patience_s, pace)
        _wait_until_running(jobs, plan, patience_s, pace)
        ledger.end_twins(jobs)
        return _ready(plan, hosts, jobs, job_name, patience_s, pace)
    except BaseException as error:
        left = ledger.give_back()
        if left and isinstance(error, LaggardError):
            raise DeploymentError(f"{error}\n{how_to_release(left)}") from error
        raise


def start_estimate(
    plan: G5kPlan, now: datetime, horizon_s: int = ESTIMATE_HORIZON_S, pace: Pace | None = None
) -> StartEstimate:
    """When the nodes of a plan are free for its walltime, from the clusters' schedules; reserves
    nothing.

    Args:
        plan: the reservation.
        now: with a time zone; the search begins a minute later.
        horizon_s: how far ahead to look.
        pace: how patient to be; by default hardly.
    """
    pace = pace or Pace(request_timeout_s=10.0, attempts=1)
    start = int((plan.start or now + timedelta(seconds=FIRST_SLOT_S)).timestamp())
    window = 0 if plan.start else horizon_s
    try:
        client_is_ready(pace)
        slot = retry_listing(
            lambda: _free_slot(plan, start, window), "the clusters' schedules", pace
        )
    except LaggardError as error:
        return StartEstimate(None, str(error))
    if slot is not None:
        moment = datetime.fromtimestamp(slot, ZoneInfo(ZONE))
        return StartEstimate(
            moment, f"these nodes are free from {moment.strftime(DATE)} on, as of now"
        )
    if plan.start:
        return StartEstimate(
            None, f"these nodes are not free on {plan.reservation} for {plan.walltime}"
        )
    return StartEstimate(
        None, f"these nodes are not free for {plan.walltime} within {horizon_s / 3600:g} hours"
    )


def _free_slot(plan: G5kPlan, start: int, window: int) -> int | None:
    import enoslib
    from enoslib.errors import NoSlotError
    from enoslib.infra.providers import find_slot

    provider = enoslib.G5k(build_conf(plan, "laggard-plan"))
    try:
        return int(find_slot([provider], window, start))
    except NoSlotError:
        return None


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
            # Somebody took the slot between the look at the schedule and the submission: look again
            # from where OAR points.
            earliest = max(earliest + FIRST_SLOT_S, refused.datetime.timestamp())
            if ledger.give_back():
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def _over(jobs: Sequence[ReservedJob]) -> tuple[ReservedJob, ...]:
    return tuple(job.model_copy(update={"released": True}) for job in jobs)


def _common_start(
    plan: G5kPlan, providers: Sequence[G5k], earliest: int, patience_s: float, pace: Pace
) -> int | None:
    """When all sites can start; None where the only one starts as soon as it can."""
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
    ledger.expect(site)

    def submit() -> Job:
        # The submission whose answer was lost may have been made. EnOSlib looks for the name too,
        # but not in every state.
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
    """A job that was there before, if it can be used.

    Raises:
        InputError: it cannot.
    """
    from enoslib.infra.enos_g5k.g5k_api_utils import get_api_username

    job = job_of(site, job_id, pace)
    what, user = f"job {job_id} at {site}", get_api_username()
    owner = str(getattr(job, "user_uid", user))
    if job.state in OVER:
        raise InputError(f"{what} is over ({job.state}) — give one that runs, or leave --job out")
    if owner != user:
        raise InputError(f"{what} is of {owner}, and you are {user} — give one of your own")
    types = set(getattr(job, "types", ()))
    if plan.deployed and "deploy" not in types:
        raise InputError(
            f"{what} is not of type `deploy`, so {plan.env_name} cannot be put on its nodes — leave"
            " it out"
        )
    if not plan.deployed and "deploy" in types:
        raise InputError(
            f"{what} is of type `deploy`, so its nodes need a system — add --env-name, such as"
            " debian12-nfs"
        )
    return job


def _wait_until_running(jobs: Sequence[Job], plan: G5kPlan, patience_s: float, pace: Pace) -> None:
    begins = plan.start.timestamp() if plan.start else 0.0
    deadline = max(time.time(), begins) + patience_s
    waiting = list(jobs)
    while True:
        for job in waiting:
            retry_listing(job.refresh, f"job {job.uid} at {job.site}", pace)
            if job.state in OVER:
                raise DeploymentError(
                    f"job {job.uid} at {job.site} ended before it ran (state"
                    f" {job.state}){_message(job)}"
                )
        waiting = [job for job in waiting if job.state != "running"]
        if not waiting:
            return
        if time.time() >= deadline:
            names = "; ".join(f"job {job.uid} at {job.site}, {_expected(job)}" for job in waiting)
            raise DeploymentError(
                f"not started within {patience_s:g} s: {names} — be more patient, or ask for less"
                " or later"
            )
        time.sleep(min(pace.poll_s, max(0.0, deadline - time.time())))


def _expected(job: Job) -> str:
    scheduled = get_job_time_s(job, "scheduled_at")
    if scheduled is None:
        return f"state {job.state}, for which Grid'5000 foresees no start"
    return (
        "which Grid'5000 foresees to start at"
        f" {datetime.fromtimestamp(scheduled, ZoneInfo(ZONE)).strftime(DATE)}"
    )


def _message(job: Job) -> str:
    message = getattr(job, "message", None)
    return f": {message}" if message else ""


def _ready(
    plan: G5kPlan,
    hosts: Sequence[Host],
    jobs: Sequence[Job],
    job_name: str,
    patience_s: float,
    pace: Pace,
) -> Reservation:
    try:
        provisioned = provision_jobs(plan, hosts, jobs, job_name, patience_s, pace)
    except DeploymentError as error:
        ended = [job for job in jobs if _is_over(job, pace)]
        if not ended:
            raise
        names = ", ".join(f"job {job.uid} at {job.site}" for job in ended)
        rule = "ended while its nodes were made ready: its walltime was over, or somebody ended it"
        raise DeploymentError(f"{names} {rule} — reserve for longer") from error
    ends = [
        (get_job_time_s(job, "started_at") or time.time())
        + (get_job_time_s(job, "walltime") or plan.walltime_s)
        for job in jobs
    ]
    owned = not plan.reused
    return Reservation(
        machines=provisioned.machines,
        roles=provisioned.roles,
        networks=provisioned.networks,
        jobs=tuple(
            to_reserved_job(job, job_name if owned else str(getattr(job, "name", "")), 0)
            for job in jobs
        ),
        owned=owned,
        ends_at_s=min(ends),
        deployed=plan.deployed,
        pace=pace,
    )


def _is_over(job: Job, pace: Pace) -> bool:
    retry_listing(job.refresh, f"job {job.uid} at {job.site}", pace)
    return job.state in OVER
