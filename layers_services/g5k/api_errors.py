"""Explanations of errors from EnOSlib and Grid'5000, each with a fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from laggard.core.errors import DeploymentError, LaggardError, PrerequisiteError
from laggard.layers_services.g5k.api import (
    explain_failure,
    format_api_error,
    iterate_causes,
    response_code,
)
from laggard.layers_services.g5k.request import G5kPlan
from laggard.layers_services.g5k.usage_rules import DATE
from laggard.layers_services.ssh.host_keys import explain_refusal


@contextmanager
def explain_errors(plan: G5kPlan) -> Iterator[None]:
    """Convert exceptions of EnOSlib, its API client and Ansible into one clear error.

    Other exceptions pass unchanged.

    Raises:
        LaggardError: the explanation, raised from EnOSlib's own exception if there is one
    """
    try:
        yield
    except Exception as error:
        own = _find_enoslib_error(error)
        clear = (
            _reservation_fault(own, plan) or _node_fault(own) or explain_failure(error, "the nodes")
        )
        if clear is None or clear is error:
            raise
        raise clear from own


def _reservation_fault(error: BaseException, plan: G5kPlan) -> LaggardError | None:
    from enoslib import errors
    from enoslib.infra.enos_g5k.error import EnosG5kDuplicateJobsError

    text = None
    if isinstance(error, errors.InvalidReservationTime):
        free = error.datetime.strftime(DATE)
        fix = f"--reservation '{free}'" if plan.reservation else "try again, or request less"
        text = f"Reservation not valid: these nodes are available from {free} on — {fix}"
    elif isinstance(error, errors.InvalidReservationTooOld):
        text = (
            f"Reservation not valid: {plan.reservation} is in the past — choose a later"
            " --reservation"
        )
    elif isinstance(error, errors.InvalidReservationCritical) and _is_refusal(error):
        text = (
            f"Grid'5000 rejects the reservation: {format_api_error(error)} — request other nodes"
            " or another time"
        )
    elif isinstance(error, errors.NoSlotError):
        rule = f"Grid'5000 has no common start time for {', '.join(plan.sites)}"
        text = f"{rule} — raise --reservation-timeout, set --reservation, or use one site"
    elif isinstance(error, EnosG5kDuplicateJobsError):
        text = f"{error} — try again"
    return None if text is None else DeploymentError(text)


def _is_refusal(error: BaseException) -> bool:
    # Other server errors are temporary failures, which `explain_failure` describes.
    return (response_code(error) or 0) < 500 or "not valid" in format_api_error(error)


def _node_fault(error: BaseException) -> LaggardError | None:
    from enoslib import errors
    from enoslib.infra.enos_g5k.error import (
        EnosG5kKavlanNodesError,
        MissingNetworkError,
        NotEnoughNodesError,
    )

    text = None
    if isinstance(error, errors.EnosUnreachableHostsError):
        text = find_refused_key(error.hosts) or (
            f"nodes do not answer SSH: {_format_host_names(error.hosts)} — try again, or choose"
            " other servers"
        )
    elif isinstance(error, errors.EnosFailedHostsError):
        text = (
            f"nodes refuse root's login: {_format_host_names(error.hosts)} — try again, or choose"
            " other servers"
        )
    elif isinstance(error, NotEnoughNodesError):
        text = f"the job has fewer nodes than the scenario needs: {error.msg} — reserve more nodes"
    elif isinstance(error, MissingNetworkError):
        text = (
            f"the job at {error.site} has no network of type {error.n_type} — reserve it with"
            " --kavlan"
        )
    elif isinstance(error, EnosG5kKavlanNodesError):
        text = f"{error} — try again"
    elif isinstance(error, FileNotFoundError | ValueError) and "SSH key" in str(error):
        return PrerequisiteError(
            str(error), "run ssh-keygen -t ed25519, or set `key_name:` in layers_services.yaml"
        )
    return None if text is None else DeploymentError(text)


def find_refused_key(results: Iterable[object]) -> str | None:
    """Return why ssh refused the host key of a node, by Ansible's results; None for no refusal."""
    for result in results:
        payload = getattr(result, "payload", None)
        if isinstance(payload, Mapping) and (why := explain_refusal(str(payload.get("msg", "")))):
            return why
    return None


def _format_host_names(hosts: Iterator[object]) -> str:
    return ", ".join(sorted({str(getattr(host, "host", host)) for host in hosts}))


def _find_enoslib_error(error: Exception) -> BaseException:
    """Return the EnOSlib exception that an explanation was raised from, else the error itself."""
    from enoslib.errors import EnosError

    return next((cause for cause in iterate_causes(error) if isinstance(cause, EnosError)), error)
