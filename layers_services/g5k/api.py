"""Requests to Grid'5000's REST API, with timeouts and retries, through EnOSlib's client.

That client (python-grid5000) has no timeout by default, and retries only after statuses 500, 502
and 504. Here every request has a timeout, temporary failures are retried, and permanent failures
become one clear error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from laggard.core.errors import (
    DeploymentError,
    InputError,
    LaggardError,
    PrerequisiteError,
    escape_unprintable,
)

log = logging.getLogger(__name__)

OVER = frozenset({"terminated", "error"})
"""States in which a job holds no nodes any more."""

_LATEST_S = 1e11
"""Unix time that no job has, in the year 5138."""

LIVE = "waiting,launching,running"
"""States in which a job holds or will hold nodes, as a filter of the API. The API does not find
jobs in state `tolaunch`."""

_LATEST_JOBS = "200"
"""Number of the latest jobs that are listed in addition; more are not started in a minute."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Pace:
    """Timeouts and retries of API requests.

    Attributes:
        request_timeout_s: longest wait for one answer
        attempts: maximum number of attempts of a request whose failure may be temporary, besides
            the client's own quick retries
        backoff_s: pause after the first failed attempt, doubled after each further one
        give_up_s: time after which no further attempt starts
        poll_s: pause between two queries of a job's state
    """

    request_timeout_s: float = 30.0
    attempts: int = 5
    backoff_s: float = 2.0
    give_up_s: float = 180.0
    poll_s: float = 5.0


class Job(Protocol):
    """Job as python-grid5000 presents it; some attributes are missing until it runs."""

    uid: int
    site: str
    state: str

    def refresh(self) -> None:
        """Query the API again."""

    def delete(self) -> None:
        """Request the end of the job."""


class _Jobs(Protocol):
    def __getitem__(self, job_id: str) -> Job: ...
    def list(self, **filters: str) -> Sequence[Job]: ...


class _Site(Protocol):
    uid: str
    jobs: _Jobs


class _Sites(Protocol):
    def __getitem__(self, site: str) -> _Site: ...
    def list(self) -> Sequence[_Site]: ...


class _Client(Protocol):
    timeout: float | None
    username: str | None
    sites: _Sites


class NoSuchJobError(InputError):
    """Error for a job number that the testbed does not know."""


def create_client(pace: Pace) -> _Client:
    """Return EnOSlib's API client, with a timeout for every answer."""
    from enoslib.infra.enos_g5k.g5k_api_utils import get_api_client

    found = cast("_Client", get_api_client())
    found.timeout = pace.request_timeout_s
    return found


def job_of(site: str, job_id: int, pace: Pace) -> Job:
    """Return a job by its number.

    Raises:
        NoSuchJobError: there is no such job
        DeploymentError: the API does not answer
        PrerequisiteError: the API rejects the user
    """
    return retry_listing(
        lambda: create_client(pace).sites[site].jobs[str(job_id)], f"job {job_id} at {site}", pace
    )


def live_jobs(site: str, pace: Pace, name: str = "") -> tuple[Job, ...]:
    """Return the user's jobs at a site that are not over, optionally only those of one name."""
    from enoslib.infra.enos_g5k.g5k_api_utils import get_api_username

    def list_jobs() -> Sequence[Job]:
        # A name has few jobs, whatever their state. A user can have thousands of finished jobs. The
        # API finds no job by the state that it has between waiting and launching, so the latest
        # jobs are listed too.
        queries: Sequence[Mapping[str, str]] = (
            ({"name": name},) if name else ({"state": LIVE}, {"limit": _LATEST_JOBS})
        )
        jobs = create_client(pace).sites[site].jobs
        user = cast("str", get_api_username())
        return [job for query in queries for job in jobs.list(user=user, **query)]

    listed = retry_listing(list_jobs, f"your jobs at {site}", pace)
    by_number = {job.uid: job for job in listed}
    newest_first = sorted(by_number.items(), reverse=True)
    return tuple(job for _, job in newest_first if job.state not in OVER)


def all_sites(pace: Pace) -> tuple[str, ...]:
    """Return the names of the testbed's sites."""
    return tuple(
        site.uid
        for site in retry_listing(create_client(pace).sites.list, "the list of sites", pace)
    )


def get_job_attribute(job: Job, name: str) -> object:
    """Return an attribute of a job; None if the job does not have it yet."""
    return getattr(job, name, None)


def get_job_time_s(job: Job, name: str) -> float | None:
    """Return an attribute in Unix seconds; None if it is missing or zero."""
    value = get_job_attribute(job, name)
    return float(value) if isinstance(value, int | float) and 0 < value < _LATEST_S else None


def retry_listing(list_jobs: Callable[[], Answer], what: str, pace: Pace) -> Answer:
    """Return the result of `list_jobs`, retried while its failure may be temporary.

    Args:
        list_jobs: function that makes one or more requests; it must be safe to repeat
        what: the requested thing, for messages
        pace: timeouts and retries

    Raises:
        LaggardError: explanation of the failure for the user
        Exception: a failure that does not come from the API, unchanged
    """
    began = time.monotonic()
    for attempt in range(1, pace.attempts + 1):
        try:
            return list_jobs()
        except Exception as error:
            waited = time.monotonic() - began
            last = attempt == pace.attempts or waited > pace.give_up_s
            if not may_pass(error) or last:
                meaning = explain_failure(error, what, attempt, waited)
                if meaning is None or meaning is error:
                    raise
                raise meaning from error
            log.warning(
                "request for %s failed (attempt %d): %s", what, attempt, format_error(error)
            )
        time.sleep(pace.backoff_s * 2 ** (attempt - 1))
    raise AssertionError("unreachable: the last attempt returns or raises")


def may_pass(error: BaseException) -> bool:
    """Return whether a failure may be temporary: no answer, or an error of the server."""
    import requests

    if any(isinstance(cause, requests.RequestException) for cause in iterate_causes(error)):
        return True
    code = response_code(error)
    # A reservation that is "not valid" can have status 500, but the same request fails again.
    return (
        code is not None
        and (code >= 500 or code == 429)
        and "not valid" not in format_api_error(error)
    )


def explain_failure(
    error: BaseException, what: str, attempts: int = 1, waited_s: float = 0.0
) -> LaggardError | None:
    """Return the explanation of a failed request; None if the API did not cause the failure."""
    if isinstance(error, LaggardError):
        return error
    code = response_code(error)
    tried = f" after {attempts} attempts in {waited_s:.0f} s" if attempts > 1 else ""
    if code == 401:
        return PrerequisiteError(
            "Grid'5000's API rejects your user name or password (401)",
            "write `username:` and `password:` into ~/.python-grid5000.yaml (mode 600)",
        )
    if code == 404:
        return NoSuchJobError(
            f"Grid'5000 did not find {what} (404) — check the site and the number"
        )
    if code is not None:
        return DeploymentError(
            f"Grid'5000's API could not provide {what}{tried}: {code} {format_api_error(error)}"
        )
    if not may_pass(error):
        return None
    return DeploymentError(
        f"Grid'5000's API did not answer the request for {what}{tried}: {format_error(error)}"
        " — check https://www.grid5000.fr/status and your network"
    )


def response_code(error: BaseException) -> int | None:
    """Return the HTTP status that caused an error; None if there is none."""
    codes = (getattr(cause, "response_code", None) for cause in iterate_causes(error))
    return next((code for code in codes if isinstance(code, int)), None)


def format_api_error(error: BaseException) -> str:
    """Format the API's message on one line."""
    texts = (getattr(cause, "error_message", None) for cause in iterate_causes(error))
    return _one_line(next((str(text) for text in texts if text), str(error)))


def format_error(error: BaseException) -> str:
    """Format an error's type and message on one line of at most 300 characters."""
    return f"{type(error).__name__}: {_one_line(format_api_error(error))}"


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that it was raised from."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _one_line(text: str) -> str:
    words = escape_unprintable(" ".join(text[:10_000].split()))
    return words if len(words) <= 300 else words[:297] + "..."
