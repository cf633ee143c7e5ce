"""What goes wrong between EnOSlib and Grid'5000, in words that help."""

from __future__ import annotations

from collections.abc import Iterator
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


@contextmanager
def explain_errors(plan: G5kPlan) -> Iterator[None]:
    """Turn what EnOSlib, its API client and Ansible raise into one clear error; anything else
    passes.

    Raises:
        LaggardError: raised from EnOSlib's own exception where there is one.
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
        fix = f"--reservation '{free}'" if plan.reservation else "try again, or ask for less"
        text = f"Reservation not valid: Grid'5000 could give these nodes from {free} on — {fix}"
    elif isinstance(error, errors.InvalidReservationTooOld):
        text = (
            f"Reservation not valid: {plan.reservation} has passed — choose a later --reservation"
        )
    elif isinstance(error, errors.InvalidReservationCritical) and _is_refusal(error):
        text = (
            f"Grid'5000 refuses the reservation: {format_api_error(error)} — ask for other nodes,"
            " or for another time"
        )
    elif isinstance(error, errors.NoSlotError):
        rule = f"Grid'5000 has no time at which {', '.join(plan.sites)} can start together"
        text = f"{rule} — be more patient, name a --reservation, or use one site"
    elif isinstance(error, EnosG5kDuplicateJobsError):
        text = f"{error} — try again"
    return None if text is None else DeploymentError(text)


def _is_refusal(error: BaseException) -> bool:
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
        text = (
            f"nodes do not answer SSH: {_format_host_names(error.hosts)} — try again, or name other"
            " servers"
        )
    elif isinstance(error, errors.EnosFailedHostsError):
        text = (
            f"nodes refuse to let root in: {_format_host_names(error.hosts)} — try again, or name"
            " other servers"
        )
    elif isinstance(error, NotEnoughNodesError):
        text = f"the job has fewer nodes than the scenario asks for: {error.msg} — reserve more"
    elif isinstance(error, MissingNetworkError):
        text = (
            f"the job at {error.site} has no network of type {error.n_type} — reserve it with"
            " --kavlan"
        )
    elif isinstance(error, EnosG5kKavlanNodesError):
        text = f"{error} — try again"
    elif isinstance(error, FileNotFoundError | ValueError) and "SSH key" in str(error):
        return PrerequisiteError(
            str(error), "ssh-keygen -t ed25519, or `key_name:` in layers_services.yaml"
        )
    return None if text is None else DeploymentError(text)


def _format_host_names(hosts: Iterator[object]) -> str:
    return ", ".join(sorted({str(getattr(host, "host", host)) for host in hosts}))


def _find_enoslib_error(error: Exception) -> BaseException:
    """What EnOSlib raised, where a clearer error was already made of it; else the error itself."""
    from enoslib.errors import EnosError

    return next((cause for cause in iterate_causes(error) if isinstance(cause, EnosError)), error)
