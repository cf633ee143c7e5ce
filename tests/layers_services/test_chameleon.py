"""Nodes of Chameleon Cloud: what a scenario asks for, and that no fault leaves anything held."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.errors import InputError, LaggardError, PrerequisiteError, ScenarioError
from laggard.core.hosts import Host
from laggard.core.run_schema import ReservedJob
from laggard.layers_services.chameleon import reserve
from laggard.layers_services.chameleon.client import ChameleonClient
from laggard.layers_services.chameleon.credentials import open_session, read_credentials
from laggard.layers_services.chameleon.plan import ChameleonPlan, NodeGroup, plan_chameleon
from laggard.layers_services.chameleon.reserve import WaitLimits, hold_nodes, release_lease
from laggard.layers_services.machine import Access
from laggard.layers_services.ssh.host_keys import ReservationKeys
from laggard.layers_services.testbed_requests import Patience
from laggard.scenario.load import load_scenario
from tests.scenario.scenario_folders import write_nodes
from tests.testbed.chameleon import REGION, ChameleonFault, ChameleonStandIn, serve_chameleon

LAYERS = """
environment:
  chameleoncloud: {cluster: compute_skylake, key_name: my-key, walltime: "02:30:00"}
layers:
  - {name: cloud, services: [{name: trainer, cluster: gpu_rtx_6000}]}
  - {name: edge, services: [{name: trainer, quantity: 2}]}
"""
PLAN = ChameleonPlan(
    (
        NodeGroup(("cloud.trainer.1.1",), "gpu_rtx_6000"),
        NodeGroup(("edge.trainer.1.1", "edge.trainer.1.2"), "compute_skylake"),
    ),
    150,
    "CC-Ubuntu24.04",
    "my-key",
)
HOSTS = tuple(
    Host(name, name.split(".")[0], "trainer", 1, int(name[-1]))
    for group in PLAN.groups
    for name in group.hosts
)
PLACEMENT = "workload.placement={workers: ['*']}"
JOB = ReservedJob(testbed="chameleon", site=REGION, job_id=0, name="laggard-1", nodes=3)


def planned(tmp_path: Path, text: str) -> ChameleonPlan:
    scenario = load_scenario(write_nodes(tmp_path / "nodes", text), [PLACEMENT])
    return plan_chameleon(scenario.layers, scenario.sources.layers_services)


def test_services_become_nodes(tmp_path: Path) -> None:
    assert planned(tmp_path, LAYERS) == PLAN


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("chameleoncloud: {cluster", "g5k: {cluster", "names no nodes of Chameleon Cloud"),
        (" key_name: my-key,", "", "reached with an SSH key that Chameleon knows"),
        ("02:30:00", "00:00:30", "leases for whole minutes"),
        ("gpu_rtx_6000", "'a b'", "no type of node"),
        ("cluster: compute_skylake, ", "", "no type of node is given"),
        ("quantity: 2", "servers: [node-1]", "leased by their type, and not by name"),
        (
            "  chameleoncloud",
            "  chameleonedge: {}\n  chameleoncloud",
            None,
        ),
    ],
)
def test_what_cannot_be_leased_is_refused_at_its_line(
    old: str, new: str, said: str | None, tmp_path: Path
) -> None:
    text = LAYERS.replace(old, new).replace(
        "g5k: {cluster: compute_skylake, key_name: my-key",
        "g5k: {cluster: paradoxe, key_name: my-key",
    )
    if said is None:
        assert planned(tmp_path, text) == PLAN, "a provider that no service names is ignored"
        text = text.replace("cluster: gpu_rtx_6000", "environment: chameleonedge")
        said = "containers of Chameleon Edge have no SSH server and no netem"
    with pytest.raises(ScenarioError, match=said) as caught:
        planned(tmp_path, text)
    assert all(problem.line > 0 for problem in caught.value.problems)


@pytest.fixture
def stand_in() -> Iterator[tuple[ChameleonStandIn, dict[str, str]]]:
    made = ChameleonStandIn()
    with serve_chameleon(made) as settings:
        yield made, settings


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> list[Access]:
    """The nodes that were logged in on; no SSH server stands in for them here."""
    made: list[Access] = []

    def log_in(access: Access, command: str, timeout_s: float) -> str:
        made.append(access)
        return ""

    monkeypatch.setattr(reserve, "await_login", log_in)
    return made


def open_client(settings: dict[str, str]) -> ChameleonClient:
    return ChameleonClient(open_session(settings), REGION, Patience(4, 0.01, 5.0))


def hold(
    client: ChameleonClient, tmp_path: Path, recorded: list[ReservedJob]
) -> reserve.HeldServers:
    keys = ReservationKeys.create(tmp_path)
    return hold_nodes(client, PLAN, HOSTS, "laggard-1", keys, recorded.extend, WaitLimits(0.3, 0.3))


def test_nodes_are_leased_deployed_and_released(
    stand_in: tuple[ChameleonStandIn, dict[str, str]], logins: list[Access], tmp_path: Path
) -> None:
    chameleon, settings = stand_in
    recorded: list[ReservedJob] = []
    held = hold(open_client(settings), tmp_path, recorded)
    assert recorded == [JOB], "recorded before it exists"
    assert [machine.alias for machine in held.machines] == [host.name for host in HOSTS]
    assert len({machine.host.address for machine in held.machines}) == 3
    assert [access.address for access in logins] == [
        "127.0.0.1",
        *(machine.host.address for machine in held.machines[1:]),
    ]
    assert [access.jumps_over for access in logins] == ["", "root@127.0.0.1", "root@127.0.0.1"]
    assert chameleon.held == 1 + 3 + 1
    assert held.release().released
    assert chameleon.held == 0
    assert {(service, method) for service, method, _ in chameleon.calls} == {
        ("reservation", "POST"), ("reservation", "GET"), ("reservation", "DELETE"),
        ("compute", "POST"), ("compute", "GET"),
        ("network", "POST"), ("network", "GET"), ("network", "DELETE"),
        ("image", "GET"),
    }  # fmt: skip


SAID = {
    ChameleonFault.UNAUTHORIZED: "refuses the credentials",
    ChameleonFault.NOT_ENOUGH_NODES: "Not enough hosts available",
    ChameleonFault.NEVER_BEGINS: "did not begin within",
    ChameleonFault.LEASE_FAILS: "ended as ERROR before it began",
    ChameleonFault.NO_IMAGE: "CC-Ubuntu24.04: .* has none of its images of this name",
    ChameleonFault.SERVER_ANSWER_LOST: "the server failed with status 502",
    ChameleonFault.DEPLOYMENT_FAILS: "could not deploy CC-Ubuntu24.04",
    ChameleonFault.NEVER_DEPLOYS: "did not deploy CC-Ubuntu24.04 on 3 nodes",
    ChameleonFault.NO_ADDRESS: "No more IP addresses available",
    ChameleonFault.GARBLED: "answer of Chameleon is garbled",
}


@pytest.mark.parametrize("fault", SAID)
def test_after_each_fault_nothing_is_held(
    fault: ChameleonFault,
    stand_in: tuple[ChameleonStandIn, dict[str, str]],
    logins: list[Access],
    tmp_path: Path,
) -> None:
    chameleon, settings = stand_in
    chameleon.fault = fault
    recorded: list[ReservedJob] = []
    with pytest.raises(LaggardError, match=SAID[fault]):
        hold(open_client(settings), tmp_path, recorded)
    assert chameleon.held == 0
    assert not logins
    unconfirmed = {ChameleonFault.UNAUTHORIZED, ChameleonFault.GARBLED}
    assert recorded[-1].released or fault in unconfirmed


@pytest.mark.parametrize("fault", [each for each in ChameleonFault if each not in SAID])
def test_what_passes_is_waited_for(
    fault: ChameleonFault,
    stand_in: tuple[ChameleonStandIn, dict[str, str]],
    logins: list[Access],
    tmp_path: Path,
) -> None:
    chameleon, settings = stand_in
    chameleon.fault = fault
    held = hold(open_client(settings), tmp_path, [])
    assert len(logins) == 3
    assert len(chameleon.leases) == 1, "leased once"
    assert held.release().released
    assert chameleon.held == 0


def test_a_lease_of_a_killed_run_is_found_by_its_name(
    stand_in: tuple[ChameleonStandIn, dict[str, str]],
) -> None:
    chameleon, settings = stand_in
    client = open_client(settings)
    client.lease(PLAN, "laggard-1")
    client.lease(PLAN, "laggard-12")
    assert release_lease(client, JOB).released
    assert [lease["name"] for lease in chameleon.leases.values()] == ["laggard-12"]


RC_FILE = """
#!/usr/bin/env bash
export OS_AUTH_TYPE=v3applicationcredential
export OS_AUTH_URL="https://chi.uc.chameleoncloud.org:5000/v3" # the site
OS_REGION_NAME='CHI@UC'
export PATH=/tmp
read -sr OS_PASSWORD_INPUT
export OS_PASSWORD=$OS_PASSWORD_INPUT
export OS_TOKEN=`touch ran`
export OS_OTHER=$(touch ran)
export OS_BROKEN="
"""


def test_an_rc_file_is_read_and_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openrc").write_text(RC_FILE)
    assert read_credentials("openrc", tmp_path) == {
        "OS_AUTH_TYPE": "v3applicationcredential",
        "OS_AUTH_URL": "https://chi.uc.chameleoncloud.org:5000/v3",
        "OS_REGION_NAME": "CHI@UC",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["openrc"]
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_credentials("none", tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"OS_AUTH_URL": "http://127.0.0.1:1/v3", "OS_AUTH_TYPE": "no such type"},
        {"OS_AUTH_URL": "http://127.0.0.1:1/v3", "OS_AUTH_TYPE": "v3applicationcredential"},
    ],
)
def test_without_credentials_nothing_begins(settings: dict[str, str]) -> None:
    with pytest.raises(PrerequisiteError, match="create an application credential"):
        open_session(settings)


def test_a_plan_names_the_nodes_and_reserves_nothing(tmp_path: Path) -> None:
    folder = write_nodes(tmp_path / "nodes", LAYERS)
    command = ["plan", str(folder), "--on", "chameleon", "--json", "--set", PLACEMENT]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "compute_skylake" in json.dumps(json.loads(result.stdout))
