"""Requests to the APIs of testbeds: repeated while a server fails, and answers checked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from laggard.core.errors import DeploymentError
from laggard.core.node_values import describe_invalid

SERVER_ERROR = 500
"""First status of HTTP that tells of a failure of the server."""

Answer = TypeVar("Answer")
Model = TypeVar("Model", bound=BaseModel)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """Limits of requests.

    Attributes:
        tries: number of attempts of a request, if the server fails.
        pause_s: seconds between two attempts, and between two looks at a state.
        release_s: longest wait for the confirmed end of a reservation, in seconds.
    """

    tries: int = 4
    pause_s: float = 3.0
    release_s: float = 120.0

    def await_state(self, is_reached: Callable[[], bool], timeout_s: float) -> bool:
        """Look at a state until it is reached; return False if the time ran out."""
        deadline_s = time.monotonic() + timeout_s
        while not is_reached():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(self.pause_s)
        return True


class ServerFailure(Exception):  # noqa: N818 - a failure that may pass
    """A server failed, or did not answer: the same request may succeed later."""


def repeat_request(request: Callable[[], Answer], what: str, patience: Patience) -> Answer:
    """Return the answer to a request, which is repeated while the server fails.

    Args:
        request: sends the request; may raise ServerFailure.
        what: what the request asks for, for messages.
        patience: number of attempts, and the pause between them.

    Raises:
        DeploymentError: the server failed every time.
    """
    for left in range(patience.tries - 1, -1, -1):
        try:
            return request()
        except ServerFailure as error:
            if not left:
                raise DeploymentError(f"{what}: {error}") from error
            _log.info("%s: %s; another attempt follows", what, error)
        time.sleep(patience.pause_s)
    raise AssertionError


def parse_answer(kind: type[Model], document: object, testbed: str) -> Model:
    """Return an answer as the model that it must follow.

    Raises:
        DeploymentError: the answer does not follow it.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        reason = describe_invalid(error)
        raise DeploymentError(f"the answer of {testbed} is garbled: {reason}") from error
