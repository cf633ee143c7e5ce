"""Giving Grid'5000's nodes back, whatever happened before."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from laggard.core.errors import LaggardError, PrerequisiteError
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
"""What the names of all of Laggard's jobs begin with; the run's id follows."""

WAIT_S = 120.0
ASK_AGAIN_S = 15.0


def job_name(run_id: str) -> str:
    """The name on the testbed of a run's jobs."""
    return f"{PREFIX}{run_id}"


def release_jobs(
    jobs: Iterable[ReservedJob], pace: Pace | None = None, wait_s: float = WAIT_S
) -> tuple[ReservedJob, ...]:
    """End jobs and wait until the testbed says that they are over.

    A request that fails is made again, and one that has no effect too. A job of number 0 is looked
    for by its name.

    Args:
        jobs: held jobs; those already released are left alone.
        pace: how patient to be with the API.
        wait_s: how long to try in all.

    Returns:
        The same jobs (a number found by name filled in), `released` where the testbed confirmed it.
        What is not released has been logged, with the command that ends it.
    """
    pace = pace or Pace()
    done: list[ReservedJob] = []
    pending: list[ReservedJob] = []
    for job in jobs:
        if job.released:
            done.append(job)
        elif job.job_id == 0:
            found = _list_jobs_named(job.name, job.site, pace)
            done += [] if found is None or found else [_mark_over(job)]
            pending += [job] if found is None else found
        else:
            pending.append(job)
    return (*done, *_end_jobs(pending, pace, wait_s))


def find_jobs(
    name: str = "", sites: Sequence[str] = (), pace: Pace | None = None
) -> tuple[ReservedJob, ...]:
    """Jobs that hold nodes, by their name on the testbed.

    Args:
        name: exact name; empty for every job of Laggard's.
        sites: where to look; empty for everywhere.
        pace: how patient to be with the API.

    Returns:
        Waiting and running jobs of the user. A site that does not answer stands there with the
        number 0: something may be held.

    Raises:
        LaggardError: the API does not even name its sites, or refuses the user.
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
    """Release these jobs and whatever else the testbed holds under this name.

    Args:
        jobs: known from a run folder.
        name: exact name on the testbed; empty for every job of Laggard's.
        sites: where to look; empty for everywhere.
        pace: how patient to be with the API.
        wait_s: how long to try in all.

    Returns:
        As `release_jobs`.
    """
    known = tuple(jobs)
    numbers = {(job.site, job.job_id) for job in known}
    known_at = {job.site for job in known}
    found = [job for job in find_jobs(name, sites, pace) if (job.site, job.job_id) not in numbers]
    return release_jobs(
        (*known, *(job for job in found if job.job_id or job.site not in known_at)), pace, wait_s
    )


def still_held(jobs: Iterable[ReservedJob]) -> tuple[ReservedJob, ...]:
    """Those that the testbed has not confirmed to be over."""
    return tuple(job for job in jobs if not job.released)


def how_to_release(jobs: Iterable[ReservedJob]) -> str:
    """What the user can do about jobs that stay held, one line each."""
    return "\n".join(_by_hand(job) for job in jobs)


def to_reserved_job(job: Job, name: str, nodes: int) -> ReservedJob:
    """A job of the API as a run folder records it."""
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
        f"{what} may still hold nodes: `laggard destroy`, or `{command}` on {job.site}'s frontend"
    )


def _list_jobs_named(name: str, site: str, pace: Pace) -> list[ReservedJob] | None:
    """Live jobs of this name; None where the site does not say."""
    try:
        jobs = live_jobs(site, pace, name)
    except NoSuchJobError:
        return []  # a site without a scheduler
    except LaggardError as error:
        log.warning("%s was not asked for its jobs: %s", site, error)
        return None
    named = [(job, str(get_job_attribute(job, "name") or name)) for job in jobs]
    return [
        to_reserved_job(job, own, 0)
        for job, own in named
        if own == name or (not name and own.startswith(PREFIX))
    ]


class _Ending:
    """One job on its way out."""

    def __init__(self, job: ReservedJob) -> None:
        self.job = job
        self.over = False
        self.reason = "not asked yet"
        self._asked_s: float | None = None

    def step(self, pace: Pace) -> None:
        """Look whether it is over; ask for its end where that was not done, failed, or had no
        effect for long.
        """
        if self.job.job_id == 0:
            self.reason = "its site does not answer"
            return
        try:
            there = job_of(self.job.site, self.job.job_id, pace)
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
        # Whatever it is, the other jobs are still to be ended; it is told.
        except Exception as error:  # noqa: BLE001
            self.reason = format_error(error)
            log.warning(
                "job %d at %s is not released yet: %s", self.job.job_id, self.job.site, self.reason
            )


def _end_jobs(jobs: Sequence[ReservedJob], pace: Pace, wait_s: float) -> tuple[ReservedJob, ...]:
    deadline = time.monotonic() + wait_s
    endings = [_Ending(job) for job in jobs]
    quick = replace(pace, attempts=1)
    try:
        while True:
            for ending in endings:
                if not ending.over:
                    ending.step(quick)
            left = deadline - time.monotonic()
            if left <= 0 or all(ending.over or ending.job.job_id == 0 for ending in endings):
                break
            time.sleep(min(pace.poll_s, left))
    except PrerequisiteError as error:
        # Told, with what is held.
        log.error("Grid'5000 does not let you release anything: %s", error)  # noqa: TRY400
    for ending in endings:
        if not ending.over:
            log.error("%s (%s)", _by_hand(ending.job), ending.reason)
    return tuple(_mark_over(ending.job) if ending.over else ending.job for ending in endings)


def _delete_job(job: Job) -> None:
    try:
        job.delete()
    except Exception as error:
        if not any("already killed" in str(cause) for cause in iterate_causes(error)):
            raise


def _mark_over(job: ReservedJob) -> ReservedJob:
    return job.model_copy(update={"released": True})
