"""Grid'5000's REST API, asked patiently, through the client that EnOSlib uses.

That client (python-grid5000) waits for ever for an answer unless told otherwise, and gives up on
anything but 500, 502 and 504. Here every request is bounded in time, what may pass is tried again,
and what may not becomes one clear error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from laggard.core.errors import DeploymentError, InputError, LaggardError, PrerequisiteError

log = logging.getLogger(__name__)

OVER = frozenset({"terminated", "error"})
"""States after which a job holds nothing."""

LIVE = "waiting,launching,running"
"""States in which a job holds, or will hold, nodes, as far as the API filters by them: it never
finds `tolaunch`."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Pace:
    """How patient to be with the API.

    Attributes:
        request_timeout_s: longest wait for one answer.
        attempts: how often a request that may pass is made, besides the client's own quick repeats.
        backoff_s: pause after the first failed attempt, doubled after each further one.
        give_up_s: no further attempt is begun after so long.
        poll_s: pause between two looks at a job's state.
    """

    request_timeout_s: float = 30.0
    attempts: int = 5
    backoff_s: float = 2.0
    give_up_s: float = 180.0
    poll_s: float = 5.0


class Job(Protocol):
    """A job as python-grid5000 shows it; some attributes are missing until it runs."""

    uid: int
    site: str
    state: str

    def refresh(self) -> None:
        """Ask the API again."""

    def delete(self) -> None:
        """Ask for its end."""


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
    """The testbed knows no job of this number."""


def create_client(pace: Pace) -> _Client:
    """EnOSlib's API client, with a bound on every answer."""
    from enoslib.infra.enos_g5k.g5k_api_utils import get_api_client

    found = cast("_Client", get_api_client())
    found.timeout = pace.request_timeout_s
    return found


def job_of(site: str, job_id: int, pace: Pace) -> Job:
    """A job by its number.

    Raises:
        NoSuchJobError: there is none.
        DeploymentError: the API does not say.
        PrerequisiteError: it refuses the user.
    """
    return retry_listing(
        lambda: create_client(pace).sites[site].jobs[str(job_id)], f"job {job_id} at {site}", pace
    )


def live_jobs(site: str, pace: Pace, name: str = "") -> tuple[Job, ...]:
    """The user's jobs at a site that are not over, of this name where one is given."""
    from enoslib.infra.enos_g5k.g5k_api_utils import get_api_username

    def list_jobs() -> Sequence[Job]:
        # All of a name are few, whatever their state; all of a user can be thousands.
        wanted = {"name": name} if name else {"state": LIVE}
        return (
            create_client(pace)
            .sites[site]
            .jobs.list(user=cast("str", get_api_username()), **wanted)
        )

    return tuple(
        job
        for job in retry_listing(list_jobs, f"your jobs at {site}", pace)
        if job.state not in OVER
    )


def all_sites(pace: Pace) -> tuple[str, ...]:
    """Names of the testbed's sites."""
    return tuple(
        site.uid
        for site in retry_listing(create_client(pace).sites.list, "the list of sites", pace)
    )


def get_job_attribute(job: Job, name: str) -> object:
    """An attribute that a job may not have yet; None where it has not."""
    return getattr(job, name, None)


def get_job_time_s(job: Job, name: str) -> float | None:
    """An attribute in Unix seconds; None where it is missing or zero."""
    value = get_job_attribute(job, name)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def retry_listing(list_jobs: Callable[[], Answer], what: str, pace: Pace) -> Answer:
    """What `list_jobs` returns, tried again while its failure may pass.

    Args:
        list_jobs: makes one or more requests; must do no harm when repeated.
        what: is asked for, to say in messages.
        pace: how patient to be.

    Raises:
        LaggardError: what the failure means to the user.
        Exception: a failure that is not the API's, as it is.
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
                "Grid'5000 did not give %s (attempt %d): %s", what, attempt, format_error(error)
            )
        time.sleep(pace.backoff_s * 2 ** (attempt - 1))
    raise AssertionError("unreachable: the last attempt returns or raises")


def may_pass(error: BaseException) -> bool:
    """Whether trying again may help: no answer, or one that blames the server."""
    import requests

    if any(isinstance(cause, requests.RequestException) for cause in iterate_causes(error)):
        return True
    code = response_code(error)
    return (
        code is not None
        and (code >= 500 or code == 429)
        and "not valid" not in format_api_error(error)
    )


def explain_failure(
    error: BaseException, what: str, attempts: int = 1, waited_s: float = 0.0
) -> LaggardError | None:
    """What a failed request means to the user; None where it was not the API that failed."""
    if isinstance(error, LaggardError):
        return error
    code = response_code(error)
    tried = f" after {attempts} attempts in {waited_s:.0f} s" if attempts > 1 else ""
    if code == 401:
        return PrerequisiteError(
            "Grid'5000's API refuses your user name or password (401)",
            "write `username:` and `password:` into ~/.python-grid5000.yaml, readable by you alone",
        )
    if code == 404:
        return NoSuchJobError(
            f"Grid'5000 knows nothing of {what} (404) — check the site and the number"
        )
    if code is not None:
        return DeploymentError(
            f"Grid'5000's API did not give {what}{tried}: {code} {format_api_error(error)}"
        )
    if not may_pass(error):
        return None
    return DeploymentError(
        f"Grid'5000's API did not answer when asked for {what}{tried}: {format_error(error)}"
        " — see https://www.grid5000.fr/status, and your network"
    )


def response_code(error: BaseException) -> int | None:
    """The HTTP status that caused an error, where one did."""
    codes = (getattr(cause, "response_code", None) for cause in iterate_causes(error))
    return next((code for code in codes if isinstance(code, int)), None)


def format_api_error(error: BaseException) -> str:
    """What the API said, on one line."""
    texts = (getattr(cause, "error_message", None) for cause in iterate_causes(error))
    return _one_line(next((str(text) for text in texts if text), str(error)))


def format_error(error: BaseException) -> str:
    """An error's kind and its own words, on one line of bearable length."""
    return f"{type(error).__name__}: {_one_line(format_api_error(error))}"


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 300 else words[:297] + "..."
