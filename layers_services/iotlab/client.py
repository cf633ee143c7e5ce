"""Requests to the API of FIT IoT-LAB: bounded in time, repeated after failures of the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated
from urllib.error import HTTPError

from pydantic import BaseModel, ConfigDict, Field

from laggard.core.errors import DeploymentError, InputError, PrerequisiteError
from laggard.layers_services.iotlab.plan import IotlabPlan
from laggard.layers_services.testbed_requests import (
    SERVER_ERROR,
    Patience,
    ServerFailure,
    parse_answer,
    repeat_request,
)

if TYPE_CHECKING:
    from enoslib.infra.enos_iotlab.iotlab_api import IotlabAPI

OVER = frozenset({"Terminated", "Stopped", "Error"})
"""States of an experiment that holds no boards any more."""

_TIMEOUT_S = 30.0
_UNAUTHORIZED = 401
_MOST_BOARDS = 3000


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
        resources = _build_resources(plan)
        try:
            _send(
                lambda: self._api.submit_experiment(name, walltime, resources, None),
                "the reservation",
            )
            return parse_answer(_Submitted, {"id": self._api.job_id}, "IoT-LAB").id
        except ServerFailure as error:
            reason = DeploymentError(f"IoT-LAB, the reservation: {error}")
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
        listed = parse_answer(_Experiments, shown, "IoT-LAB").items
        return tuple(each for each in listed if each.name == name and each.state not in OVER)

    def look(self, number: int) -> Experiment:
        """Return an experiment in its present state."""
        shown = self._repeat(
            lambda: self._api.api.get_experiment_info(number), f"experiment {number}"
        )
        document = shown if isinstance(shown, dict) else {}
        return parse_answer(Experiment, {"id": number, **document}, "IoT-LAB")

    def list_boards(self, number: int) -> tuple[Board, ...]:
        """Return the boards of a running experiment."""
        shown = self._repeat(
            lambda: self._api.api.get_experiment_info(number, "nodes"),
            f"the boards of experiment {number}",
        )
        return parse_answer(_Boards, shown, "IoT-LAB").items

    def stop(self, number: int) -> None:
        """Ask for the end of an experiment; one that has ended is left alone."""
        try:
            self._repeat(
                lambda: self._api.api.stop_experiment(number), f"the end of experiment {number}"
            )
        except DeploymentError:
            if self.look(number).state not in OVER:
                raise

    def _repeat(self, request: Callable[[], object], what: str) -> object:
        return repeat_request(lambda: _send(request, what), f"IoT-LAB, {what}", self.patience)


def _send(request: Callable[[], object], what: str) -> object:
    """Send a request of iotlabcli.

    Raises:
        ServerFailure: the server failed, or did not answer.
        LaggardError: the server refused the request.
    """
    try:
        return request()
    except HTTPError as error:
        if error.code < SERVER_ERROR:
            raise _explain(error, what) from error
        raise ServerFailure(f"the server failed with status {error.code}") from error
    # iotlabcli raises RuntimeError for every other error of requests.
    except (OSError, RuntimeError) as error:
        raise ServerFailure(f"no answer: {error}") from error


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
            return requests.request(
                method,
                url,
                timeout=_TIMEOUT_S,
                **options,  # type: ignore[arg-type]
            )

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


def _explain(error: HTTPError, what: str) -> DeploymentError | InputError:
    said = " ".join(str(error).split())[:400]
    if error.code == _UNAUTHORIZED:
        return InputError(
            f"IoT-LAB refuses the account of ~/.iotlabrc ({what}) — run `iotlab-auth -u USER` again"
        )
    return DeploymentError(f"IoT-LAB refuses {what}: {said}")
