"""Requests to the API of FIT IoT-LAB: bounded in time, repeated after failures of the server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.error import HTTPError

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from laggard.core.errors import DeploymentError, InputError, PrerequisiteError
from laggard.core.node_values import describe_invalid
from laggard.layers_services.iotlab.plan import IotlabPlan

if TYPE_CHECKING:
    from enoslib.infra.enos_iotlab.iotlab_api import IotlabAPI

OVER = frozenset({"Terminated", "Stopped", "Error"})
"""States of an experiment that holds no boards any more."""

_TIMEOUT_S = 30.0
_UNAUTHORIZED = 401
_SERVER_ERROR = 500
_MOST_BOARDS = 3000

Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


class Experiment(BaseModel):
    """Experiment, which is IoT-LAB's word for a reservation."""

    model_config = ConfigDict(frozen=True)

    id: Annotated[int, Field(ge=1, le=1 << 53)]
    name: Annotated[str | None, Field(max_length=200)] = None
    state: Annotated[str, Field(max_length=50)]


class Board(BaseModel):
    """Board of an experiment."""

    model_config = ConfigDict(frozen=True)

    network_address: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,100}$")]
    site: Annotated[str, Field(max_length=50)]
    archi: Annotated[str, Field(max_length=100)]


class _Submitted(BaseModel):
    id: Annotated[int, Field(ge=1, le=1 << 53)]


class _Experiments(BaseModel):
    items: Annotated[tuple[Experiment, ...], Field(max_length=10_000)]


class _Boards(BaseModel):
    items: Annotated[tuple[Board, ...], Field(max_length=_MOST_BOARDS)]


@dataclass(frozen=True)
class Patience:
    """Limits of requests.

    Attributes:
        tries: number of attempts of a request that a failing server may repeat.
        pause_s: seconds between two attempts, and between two looks at a state.
    """

    tries: int = 4
    pause_s: float = 3.0


@dataclass
class IotlabClient:
    """Client of the API, with the account of the user's `~/.iotlabrc`.

    Attributes:
        patience: limits of requests.
    """

    patience: Patience = field(default_factory=Patience)
    _api: IotlabAPI = field(init=False)

    def __post_init__(self) -> None:
        self._api = _open_api()

    @property
    def user(self) -> str:
        """Name of the account."""
        return str(self._api.user)

    def submit(self, plan: IotlabPlan, name: str) -> int:
        """Submit an experiment and return its number.

        If the answer is lost, the experiment is found by its name, since it must not be submitted
        twice.
        """
        walltime = f"{plan.minutes // 60:02d}:{plan.minutes % 60:02d}"
        try:
            self._api.submit_experiment(name, walltime, _build_resources(plan), None)
            return _parse(_Submitted, {"id": self._api.job_id}).id
        except HTTPError as error:
            if error.code < _SERVER_ERROR:
                raise _explain(error, "the reservation") from error
            reason = _explain(error, "the reservation")
        # requests, of the client, raises RuntimeError for every other error.
        except (OSError, RuntimeError) as error:
            reason = DeploymentError(f"IoT-LAB did not answer to the reservation: {error}")
        found = self.find(name)
        if not found:
            raise reason
        return found[0].id

    def find(self, name: str) -> tuple[Experiment, ...]:
        """Return the experiments of a name that hold boards, or will."""
        states = "Waiting,toLaunch,Launching,Running,Finishing"
        shown = self._repeat(
            lambda: self._api.api.get_experiments(states, 0, 0), "the list of experiments"
        )
        listed = _parse(_Experiments, shown).items
        return tuple(each for each in listed if each.name == name and each.state not in OVER)

    def look(self, number: int) -> Experiment:
        """Return an experiment in its present state."""
        shown = self._repeat(
            lambda: self._api.api.get_experiment_info(number), f"experiment {number}"
        )
        document = shown if isinstance(shown, dict) else {}
        return _parse(Experiment, {"id": number, **document})

    def list_boards(self, number: int) -> tuple[Board, ...]:
        """Return the boards of a running experiment."""
        shown = self._repeat(
            lambda: self._api.api.get_experiment_info(number, "nodes"),
            f"the boards of experiment {number}",
        )
        return _parse(_Boards, shown).items

    def stop(self, number: int) -> None:
        """Ask for the end of an experiment; one that has ended is left alone."""
        try:
            self._repeat(
                lambda: self._api.api.stop_experiment(number), f"the end of experiment {number}"
            )
        except DeploymentError:
            if self.look(number).state not in OVER:
                raise

    def _repeat(self, request: Callable[[], Answer], what: str) -> Answer:
        """Return the answer to a request, which is repeated while the server fails."""
        for left in range(self.patience.tries - 1, -1, -1):
            try:
                return request()
            except HTTPError as error:
                if error.code < _SERVER_ERROR or not left:
                    raise _explain(error, what) from error
                _log.info("IoT-LAB failed to give %s (%d)", what, error.code)
            except (OSError, RuntimeError) as error:
                if not left:
                    raise DeploymentError(f"IoT-LAB does not give {what}: {error}") from error
            time.sleep(self.patience.pause_s)
        raise AssertionError


def _open_api() -> IotlabAPI:
    """Return EnOSlib's client, whose requests end after a while.

    Raises:
        PrerequisiteError: there is no account on this machine.
    """
    import requests
    from enoslib.infra.enos_iotlab.error import EnosIotlabCfgError
    from enoslib.infra.enos_iotlab.iotlab_api import IotlabAPI
    from iotlabcli.rest import Api

    class BoundedApi(Api):  # type: ignore[misc]  # the client ships no types
        """Client of IoT-LAB with a limit for each request."""

        @staticmethod
        def _request(url: str, method: str, **options: object) -> requests.Response:
            return requests.request(method, url, timeout=_TIMEOUT_S, **options)  # type: ignore[arg-type]

    try:
        opened = IotlabAPI()
    except EnosIotlabCfgError as error:
        raise PrerequisiteError(
            "there is no account of FIT IoT-LAB on this machine",
            "iotlab-auth -u USER, which writes ~/.iotlabrc",
        ) from error
    opened.api = BoundedApi(opened.user, opened.password)
    return opened


def _build_resources(plan: IotlabPlan) -> Sequence[object]:
    """Return the boards as EnOSlib's provider names them."""
    from enoslib.infra.enos_iotlab.configuration import BoardConfiguration, PhysNodeConfiguration

    return [
        PhysNodeConfiguration(roles=[*group.hosts], hostname=[*group.boards])
        if group.boards
        else BoardConfiguration(
            roles=[*group.hosts], archi=group.archi, site=group.site, number=len(group.hosts)
        )
        for group in plan.groups
    ]


Model = TypeVar("Model", bound=BaseModel)


def _parse(kind: type[Model], document: object) -> Model:
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        raise DeploymentError(f"IoT-LAB's answer is garbled: {describe_invalid(error)}") from error


def _explain(error: HTTPError, what: str) -> DeploymentError | InputError:
    said = " ".join(str(error).split())[:400]
    if error.code == _UNAUTHORIZED:
        return InputError(
            f"IoT-LAB refuses the account of ~/.iotlabrc ({what}) — run `iotlab-auth -u USER` again"
        )
    return DeploymentError(f"IoT-LAB refuses {what}: {said}")
