"""Release of Grid'5000 nodes, whatever happened before."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from laggard.core.errors import InputError, LaggardError, PrerequisiteError, escape_unprintable
from laggard.core.run_schema import ReservedJob
from laggard.layers_services.g5k.api import (
    OVER,
    Job,
    NoSuchJobError,
    Pace,
    all_sites,
    format_error,
    get_job_attribute,
    iterate_causes,
    job_of,
    live_jobs,
)

log = logging.getLogger(__name__)

PREFIX = "laggard-"
"""Prefix of the names of all of Laggard's jobs; the run's id follows."""

WAIT_S = 120.0
ASK_AGAIN_S = 15.0

_SITE = re.compile(r"[a-z][a-z0-9-]{0,62}", re.ASCII)


class ForeignJobError(InputError):
    """Recorded job that belongs to another run or user on the testbed; it was not ended."""


def job_name(run_id: str) -> str:
    """Return the name of a run's jobs on the testbed."""
    return f"{PREFIX}{run_id}"


def release_jobs(
    jobs: Iterable[ReservedJob], pace: Pace | None = None, wait_s: float = WAIT_S
) -> tuple[ReservedJob, ...]:
    """End jobs and wait until the testbed confirms that they are over.

    Requests that fail or have no effect are repeated. A job of number 0 is searched by its name.
    A job is ended only if it has the recorded name on the testbed and belongs to the user, because
    a record may be wrong.

    Args:
        jobs: recorded jobs; those already released are skipped
        pace: timeouts and retries
        wait_s: total time limit in seconds

    Returns:
        The same jobs, with numbers that were found by name, and with `released` set if the testbed
        confirmed the end. A job that is not released has been logged with the command that ends
        it.

    Raises:
        ForeignJobError: some jobs have another name or owner; the others were ended
    """
    pace = pace or Pace()
    done: list[ReservedJob] = []
    pending: list[ReservedJob] = []
    for job in jobs:
        if job.released:
            done.append(job)
        elif job.job_id == 0:
            found = _list_jobs_named(job.name, job.site, pace)
            # No live job of this name: the submission failed, or the job has ended since.
            done += [] if found is None or found else [_mark_over(job)]
            pending += [job] if found is None else found
        else:
            pending.append(job)
    return (*done, *_end_jobs(pending, pace, wait_s))


def find_jobs(
    name: str = "", sites: Sequence[str] = (), pace: Pace | None = None
) -> tuple[ReservedJob, ...]:
    """Return jobs that hold nodes, by their name on the testbed.

    Args:
        name: exact name; empty for every job of Laggard
        sites: sites to search; empty for all
        pace: timeouts and retries

    Returns:
        Waiting and running jobs of the user. A site that does not answer has an entry with job
        number 0, because it may hold a job.

    Raises:
        LaggardError: the API does not list its sites, or rejects the user
    """
    pace = pace or Pace()
    found: list[ReservedJob] = []
    for site in sites or all_sites(pace):
        there = _list_jobs_named(name, site, pace)
        found += (
            [ReservedJob(testbed="g5k", site=site, job_id=0, name=name, nodes=0)]
            if there is None
            else there
        )
    return tuple(found)


def destroy(
    jobs: Iterable[ReservedJob] = (),
    name: str = "",
    sites: Sequence[str] = (),
    pace: Pace | None = None,
    wait_s: float = WAIT_S,
) -> tuple[ReservedJob, ...]:
    """Release these jobs and every other job of this name on the testbed.

    Args:
        jobs: jobs known from a run folder
        name: exact name on the testbed; empty for every job of Laggard
        sites: sites to search; empty for all
        pace: timeouts and retries
        wait_s: total time limit in seconds

    Returns:
        As `release_jobs`.

    Raises:
        ForeignJobError: as `release_jobs`, or a recorded job has another name than `name`, or its
            site has no possible name; then nothing was ended
    """
    known = tuple(jobs)
    placeholders = (
        ReservedJob(testbed="g5k", site=site, job_id=0, name=name, nodes=0) for site in sites
    )
    for job in (*known, *placeholders):
        _require_own_record(job, name)
    numbers = {(job.site, job.job_id) for job in known}
    known_at = {job.site for job in known}
    found = [job for job in find_jobs(name, sites, pace) if (job.site, job.job_id) not in numbers]
    return release_jobs(
        (*known, *(job for job in found if job.job_id or job.site not in known_at)), pace, wait_s
    )


def still_held(jobs: Iterable[ReservedJob]) -> tuple[ReservedJob, ...]:
    """Return the jobs whose end the testbed has not confirmed."""
    return tuple(job for job in jobs if not job.released)


def how_to_release(jobs: Iterable[ReservedJob]) -> str:
    """Return instructions for releasing the jobs by hand, one line per job."""
    return "\n".join(_by_hand(job) for job in jobs)


def to_reserved_job(job: Job, name: str, nodes: int) -> ReservedJob:
    """Convert a job of the API to the form that a run folder records."""
    assigned = get_job_attribute(job, "assigned_nodes")
    count = len(assigned) if isinstance(assigned, list) and assigned else nodes
    return ReservedJob(testbed="g5k", site=job.site, job_id=int(job.uid), name=name, nodes=count)


def _by_hand(job: ReservedJob) -> str:
    what = (
        f"job {job.job_id} at {job.site}"
        if job.job_id
        else f"a job named {job.name or PREFIX + '...'} at {job.site}"
    )
    command = f"oardel {job.job_id}" if job.job_id else "oarstat -u, then oardel"
    return (
        f"{what} may still hold nodes: run `laggard destroy`, or `{command}` on {job.site}'s"
        " frontend"
    )


def _list_jobs_named(name: str, site: str, pace: Pace) -> list[ReservedJob] | None:
    """Return live jobs of this name; None if the site does not answer."""
    try:
        jobs = live_jobs(site, pace, name)
    except NoSuchJobError:
        return []  # the site has no scheduler
    except LaggardError as error:
        log.warning("could not list the jobs at %s: %s", site, error)
        return None
    named = [(job, str(get_job_attribute(job, "name") or name)) for job in jobs]
    return [
        to_reserved_job(job, own, 0)
        for job, own in named
        if own == name or (not name and own.startswith(PREFIX))
    ]


def _require_own_record(job: ReservedJob, name: str) -> None:
    """Refuse a record that names a job of something else than the run.

    Raises:
        ForeignJobError: it does
    """
    if (name and job.name != name) or not _SITE.fullmatch(job.site) or job.job_id < 0:
        raise ForeignJobError(
            escape_unprintable(
                f"run.json lists job {job.job_id} at {job.site}, named {job.name}: the jobs of this"
                f" run are named {name or PREFIX + '...'}, at a site of Grid'5000 — nothing was"
                " released; remove the job from run.json"
            )
        )


class _Ending:
    """Release of one job and its progress."""

    def __init__(self, job: ReservedJob) -> None:
        self.job = job
        self.over = False
        self.foreign = ""
        self.reason = "its release was not requested yet"
        self._asked_s: float | None = None

    def step(self, pace: Pace) -> None:
        """Query the job's state and request its end.

        The request is repeated if it failed or had no effect for `ASK_AGAIN_S`.
        """
        if self.job.job_id == 0:
            self.reason = "its site does not answer"
            return
        try:
            there = job_of(self.job.site, self.job.job_id, pace)
            if there.state not in OVER:
                self.foreign = _describe_foreign_job(self.job, there)
            if self.foreign:
                return
            if there.state not in OVER and (
                self._asked_s is None or time.monotonic() - self._asked_s > ASK_AGAIN_S
            ):
                _delete_job(there)
                self._asked_s = time.monotonic()
                there.refresh()
            self.over, self.reason = there.state in OVER, f"its state is {there.state}"
        except NoSuchJobError:
            self.over = True
        except PrerequisiteError:
            raise
        # The remaining jobs must be ended whatever the error is; it is logged.
        except Exception as error:  # noqa: BLE001
            self.reason = format_error(error)
            log.warning(
                "job %d at %s could not be released yet: %s",
                self.job.job_id,
                self.job.site,
                self.reason,
            )


def _end_jobs(jobs: Sequence[ReservedJob], pace: Pace, wait_s: float) -> tuple[ReservedJob, ...]:
    deadline = time.monotonic() + wait_s
    endings = [_Ending(job) for job in jobs]
    # The loop itself retries, so that one failing job does not delay the others.
    quick = replace(pace, attempts=1)
    try:
        while True:
            for ending in endings:
                if not (ending.over or ending.foreign):
                    ending.step(quick)
            left = deadline - time.monotonic()
            if left <= 0 or all(
                ending.over or ending.foreign or ending.job.job_id == 0 for ending in endings
            ):
                break
            time.sleep(min(pace.poll_s, left))
    except PrerequisiteError as error:
        # Logged instead of raised, since the jobs that are still held are reported below.
        log.error("Grid'5000 rejects every release: %s", error)  # noqa: TRY400
    for ending in endings:
        if not (ending.over or ending.foreign):
            log.error("%s (%s)", _by_hand(ending.job), ending.reason)
    if foreign := [ending.foreign for ending in endings if ending.foreign]:
        raise ForeignJobError("\n".join(foreign))
    return tuple(_mark_over(ending.job) if ending.over else ending.job for ending in endings)


def _describe_foreign_job(recorded: ReservedJob, there: Job) -> str:
    """Return the reason not to end a job; empty if it is the recorded one and the user's own."""
    from enoslib.infra.enos_g5k.g5k_api_utils import get_api_username

    user = str(get_api_username())
    name = str(get_job_attribute(there, "name") or "")
    owner = str(get_job_attribute(there, "user_uid") or user)
    if (name, owner) == (recorded.name, user):
        return ""
    return escape_unprintable(
        f"job {recorded.job_id} at {recorded.site} is named {name[:100] or '(nothing)'} and belongs"
        f" to {owner[:100]} on Grid'5000; the run's job is named {recorded.name} and belongs to"
        f" {user} — it was not released; remove it from run.json"
    )


def _delete_job(job: Job) -> None:
    try:
        job.delete()
    except Exception as error:
        # OAR reports an error for a job that is already ending, which is the requested result.
        if not any("already killed" in str(cause) for cause in iterate_causes(error)):
            raise


def _mark_over(job: ReservedJob) -> ReservedJob:
    return job.model_copy(update={"released": True})
