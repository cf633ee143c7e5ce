"""Boards of FIT IoT-LAB: what a scenario asks for, what cannot train, and that nothing stays held."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.errors import LaggardError, PrerequisiteError, ScenarioError
from laggard.core.hosts import Host
from laggard.core.run_schema import ReservedJob
from laggard.layers_services.iotlab.client import IotlabClient
from laggard.layers_services.iotlab.plan import BoardGroup, IotlabPlan, plan_iotlab
from laggard.layers_services.iotlab.reserve import (
    _assign,
    _find_address,
    hold_boards,
    release_experiment,
)
from laggard.layers_services.ssh.host_keys import ReservationKeys
from laggard.layers_services.testbed_requests import Patience
from laggard.scenario.load import load_scenario
from tests.scenario.scenario_folders import write_nodes
from tests.testbed.iotlab import PASSWORD, USER, IotlabFault, IotlabStandIn, serve_iotlab

RPI = "rpi3:at86rf233"
BOARDS = tuple(
    (f"rpi3-{i}.{site}.iot-lab.info", site, RPI) for site in ("grenoble", "saclay") for i in (1, 2)
)
LAYERS = """
environment:
  iotlab: {cluster: grenoble, walltime: "02:30:00"}
layers:
  - {name: fog, services: [{name: trainer, archi: "ARCHI"}]}
  - {name: edge, services: [{name: trainer, EDGE}]}
"""
BY_KIND = f'cluster: saclay, archi: "{RPI}", quantity: 2'
NAMED = "rpi3-2.saclay.iot-lab.info, rpi3-1.saclay.iot-lab.info"
PLAN = IotlabPlan(
    (
        BoardGroup(("fog.trainer.1.1",), "grenoble", RPI),
        BoardGroup(
            ("edge.trainer.1.1", "edge.trainer.1.2"),
            "saclay",
            RPI,
        ),
    ),
    150,
)
HOSTS = tuple(
    Host(name, name.split(".")[0], "trainer", 1, int(name[-1]))
    for group in PLAN.groups
    for name in group.hosts
)


def layers(archi: str = RPI, edge: str = BY_KIND) -> str:
    return LAYERS.replace("ARCHI", archi).replace("EDGE", edge)


def planned(tmp_path: Path, text: str) -> IotlabPlan:
    folder = write_nodes(tmp_path / "boards", text)
    scenario = load_scenario(folder, ["workload.placement={workers: ['*']}"])
    return plan_iotlab(scenario.layers, scenario.sources.layers_services)


def test_services_become_boards(tmp_path: Path) -> None:
    assert planned(tmp_path, layers()) == PLAN


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (layers("m3:at86rf231"), "boards of this kind have no Linux"),
        (layers("a8:at86rf231"), "A8 boards have Linux of 32 bits"),
        (layers(edge="servers: [m3-1.lille.iot-lab.info]"), "boards of this kind have no Linux"),
        (layers(edge="servers: [rpi3-1.mars.iot-lab.info]"), "no name of a board"),
        (layers(edge=f"servers: [{NAMED}]"), "by name or by kind, and not both"),
        (layers().replace("grenoble,", "grenobl,"), "write `cluster: grenoble`"),
        (layers().replace("02:30:00", "00:00:30"), "reserves for whole minutes"),
        (
            layers().replace("iotlab:", "g5k:"),
            "this scenario names no boards of FIT IoT-LAB",
        ),
        (
            layers()
            .replace('archi: "', 'environment: g5k, archi: "')
            .replace("environment:\n", "environment:\n  g5k: {}\n"),
            "it is for g5k, and one run reserves on one testbed",
        ),
    ],
)
def test_what_cannot_train_is_refused_at_its_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=said) as caught:
        planned(tmp_path, text)
    assert all(problem.line > 0 for problem in caught.value.problems)


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an account of the stand-in."""
    secret = base64.b64encode(PASSWORD.encode()).decode()
    file = tmp_path / ".iotlabrc"
    file.write_text(f"{USER}:{secret}")
    monkeypatch.setattr("iotlabcli.auth.RC_FILE", str(file))
    return file


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, account: Path) -> Iterator[IotlabStandIn]:
    made = IotlabStandIn(BOARDS)
    with serve_iotlab(made) as url:
        monkeypatch.setattr("iotlabcli.rest.Api.url", url)
        yield made


def client() -> IotlabClient:
    return IotlabClient(Patience(4, 0.01))


def test_named_boards_are_given_to_the_hosts_that_name_them(
    stand_in: IotlabStandIn, tmp_path: Path
) -> None:
    named = layers().replace(f'archi: "{RPI}"}}]', "servers: [rpi3-2.grenoble.iot-lab.info]}]", 1)
    plan = planned(tmp_path, named.replace(BY_KIND, f"servers: [{NAMED}]"))
    boards = _assign(plan, client().list_boards(client().submit(plan, "laggard-1")))
    assert [board.network_address for board in boards.values()] == [
        "rpi3-2.grenoble.iot-lab.info",
        *NAMED.split(", "),
    ]
    assert stand_in.held


def test_boards_are_submitted_given_and_released(stand_in: IotlabStandIn) -> None:
    api = client()
    assert api.user == USER
    number = api.submit(PLAN, "laggard-1")
    assert api.look(number).state == "Running"
    boards = _assign(PLAN, api.list_boards(number))
    assert {host: board.network_address for host, board in boards.items()} == {
        "fog.trainer.1.1": "rpi3-1.grenoble.iot-lab.info",
        "edge.trainer.1.1": "rpi3-1.saclay.iot-lab.info",
        "edge.trainer.1.2": "rpi3-2.saclay.iot-lab.info",
    }
    job = ReservedJob(testbed="iotlab", site="grenoble", job_id=number, name="laggard-1", nodes=3)
    assert stand_in.held == [number]
    assert release_experiment(api, job).released
    assert stand_in.held == []
    assert {path for _, path in stand_in.calls} == {
        "/api/experiments",
        f"/api/experiments/{number}",
        f"/api/experiments/{number}/nodes",
    }


SAID = {
    IotlabFault.UNAUTHORIZED: "refuses the account",
    IotlabFault.NO_BOARDS: "Reservation not valid",
    IotlabFault.NEVER_BEGINS: "did not begin within",
    IotlabFault.ENDS_AT_ONCE: "ended as Error before it began",
    IotlabFault.TOO_FEW_BOARDS: "gave 2 boards, and none for edge.trainer.1.2",
    IotlabFault.GARBLED: "answer of IoT-LAB is garbled",
}


@pytest.mark.parametrize("fault", SAID)
def test_after_each_fault_no_board_is_held(
    fault: IotlabFault, stand_in: IotlabStandIn, tmp_path: Path
) -> None:
    stand_in.fault = fault
    recorded: list[ReservedJob] = []
    keys = ReservationKeys.create(tmp_path)
    with pytest.raises(LaggardError, match=SAID[fault]):
        hold_boards(client(), PLAN, HOSTS, "laggard-1", keys, recorded.extend, 0.2)
    assert stand_in.held == []
    assert recorded[0].job_id == 0, "recorded before it exists"
    assert recorded[-1].released or fault is IotlabFault.UNAUTHORIZED


@pytest.mark.parametrize(
    "fault", [IotlabFault.SERVER_ERRORS, IotlabFault.ANSWER_LOST, IotlabFault.END_FAILS]
)
def test_what_passes_is_waited_for(fault: IotlabFault, stand_in: IotlabStandIn) -> None:
    stand_in.fault = fault
    api = client()
    number = api.submit(PLAN, "laggard-1") if fault is not IotlabFault.SERVER_ERRORS else 0
    if number == 0:
        assert api.find("laggard-1") == ()
        number = api.submit(PLAN, "laggard-1")
    assert len(stand_in.experiments) == 1, "submitted once"
    job = ReservedJob(testbed="iotlab", site="grenoble", job_id=number, name="laggard-1", nodes=3)
    assert release_experiment(api, job).released
    assert stand_in.held == []


def test_an_experiment_without_its_number_is_found_by_its_name(stand_in: IotlabStandIn) -> None:
    api = client()
    api.submit(PLAN, "of another run")
    number = api.submit(PLAN, "laggard-1")
    job = ReservedJob(testbed="iotlab", site="grenoble", job_id=0, name="laggard-1", nodes=3)
    released = release_experiment(api, job)
    assert (released.job_id, released.released) == (number, True)
    assert len(stand_in.held) == 1


def test_without_an_account_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotlabcli.auth.RC_FILE", str(tmp_path / "none"))
    with pytest.raises(PrerequisiteError, match="there is no account of FIT IoT-LAB"):
        IotlabClient()


@pytest.mark.parametrize(
    ("shown", "address"),
    [
        ("2: eth0    inet 10.0.12.7/21 brd 10.0.15.255 scope global eth0\n", "10.0.12.7"),
        ("2: eth0 inet 999.0.0.1/8 \n3: eth1 inet 10.0.0.2/8", "10.0.0.2"),
        ("", None),
        ("inet 10.0.0.1", None),
    ],
)
def test_the_address_is_the_boards_own(shown: str, address: str | None) -> None:
    if address is not None:
        assert _find_address(shown) == address
        return
    with pytest.raises(LaggardError, match="lists no IPv4 address"):
        _find_address(shown)


def test_a_plan_names_the_boards_and_reserves_nothing(tmp_path: Path) -> None:
    folder = write_nodes(tmp_path / "boards", layers())
    command = ["plan", str(folder), "--on", "iotlab", "--json"]
    placement = ["--set", "workload.placement={workers: ['*']}"]
    result = CliRunner().invoke(main, [*command, *placement])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert '"saclay"' in json.dumps(shown)
    assert "rpi3" in json.dumps(shown)
