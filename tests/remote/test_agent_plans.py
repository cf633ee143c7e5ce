"""What each node's agent is told, as values."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.emulated_drive import DriveLimits
from laggard.remote.agent_plans import build_agent_plans, find_evaluator_host, list_sent_files
from laggard.scenario.load import Scenario, load_scenario
from laggard.workloads.plan import plan_addresses
from laggard.workloads.transport.keys import make_endpoints
from tests.command_line import SMALL

CLOUD, EDGE, FAR = "cloud.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2"
HETEROGENEITY = """
deterministic:
  - {hosts: "edge.trainer.1.1", cpu: 20%, memory: 1GiB}
  - {hosts: "edge.trainer.1.2", read: 2MB/s}
dynamic:
  - {at: 1s, for: 1s, hosts: "cloud.*", write_latency: 5ms}
"""


def loaded(folder: Path, *settings: str) -> Scenario:
    for name, text in {**SMALL, "heterogeneity.yaml": HETEROGENEITY}.items():
        (folder / name).write_text(text)
    return load_scenario(folder, settings)


def test_every_node_is_told_its_own_limits_and_its_workers_their_own_drive(tmp_path: Path) -> None:
    plans = build_agent_plans(
        loaded(tmp_path), {name: f"/var/{name}" for name in (CLOUD, EDGE, FAR)}, {}
    )
    assert {name: plan.share for name, plan in plans.items()} == {CLOUD: None, EDGE: 0.2, FAR: None}
    assert {name: plan.memory_bytes for name, plan in plans.items()} == {
        CLOUD: None,
        EDGE: 1 << 30,
        FAR: None,
    }
    assert plans[CLOUD].drive == DriveLimits(), (
        "what an event limits later has a drive from the start"
    )
    assert plans[EDGE].drive is None
    assert plans[FAR].drive == DriveLimits(read_mb_per_s=2.0)
    drives = {worker.host: worker.drive for plan in plans.values() for worker in plan.workers}
    assert drives == {
        CLOUD: f"/var/{CLOUD}/drives/{CLOUD}",
        EDGE: None,
        FAR: f"/var/{FAR}/drives/{FAR}",
    }


@pytest.mark.parametrize(
    ("key", "copy"), [("resume", "resumed.pt"), ("initial_weights", "initial_weights.pt")]
)
def test_a_worker_begins_with_the_copy_of_its_node(tmp_path: Path, key: str, copy: str) -> None:
    (tmp_path / "given.pt").write_bytes(b"")
    scenario = loaded(tmp_path, f"workload.{key}=given.pt")
    assert getattr(scenario.workload, key) == str(tmp_path / "given.pt")
    assert list_sent_files(scenario.workload) == {copy: tmp_path / "given.pt"}
    folders = {name: f"/var/{name}" for name in (CLOUD, EDGE, FAR)}
    plans = build_agent_plans(scenario, folders, {})
    workers = [worker for plan in plans.values() for worker in plan.workers]
    assert workers
    assert [getattr(each.workload, key) for each in workers] == [
        f"/var/{each.host}/{copy}" for each in workers
    ]


@pytest.mark.parametrize("strategy", ["asynchronous", "gossip"])
def test_every_node_is_told_its_own_secrets_alone(tmp_path: Path, strategy: str) -> None:
    scenario = loaded(
        tmp_path, f"workload.strategy={strategy}", "workload.placement.server=edge.trainer.1.2"
    )
    endpoints = make_endpoints(plan_addresses(scenario.workload, scenario.hosts), 9.0)
    plans = build_agent_plans(
        scenario, {name: f"/var/{name}" for name in (CLOUD, EDGE, FAR)}, {}, endpoints
    )
    addresses = {host.name: host.address for host in scenario.hosts}
    told = {name: plan.model_dump_json() for name, plan in plans.items()}
    for endpoint in endpoints:
        knowing = [name for name in plans if endpoint.secret_key in told[name]]
        assert [addresses[name] for name in knowing] == [
            endpoint.addresses[endpoint.node].partition(":")[0]
        ]
        assert endpoint.secret_key not in repr(plans)


def test_a_training_is_evaluated_beside_its_server(tmp_path: Path) -> None:
    scenario = loaded(
        tmp_path, "workload.strategy=asynchronous", "workload.placement.server=edge.trainer.1.2"
    )
    endpoints = make_endpoints(plan_addresses(scenario.workload, scenario.hosts), 9.0)
    plans = build_agent_plans(
        scenario, {name: f"/var/{name}" for name in (CLOUD, EDGE, FAR)}, {}, endpoints
    )
    assert [name for name, plan in plans.items() if plan.server is not None] == [FAR]
    assert (
        [name for name, plan in plans.items() if plan.evaluator is not None]
        == [FAR]
        == [find_evaluator_host(scenario)]
    )
    without = loaded(tmp_path)
    assert find_evaluator_host(without) == CLOUD
    plans = build_agent_plans(without, {name: f"/var/{name}" for name in (CLOUD, EDGE, FAR)}, {})
    assert [name for name, plan in plans.items() if plan.evaluator is not None] == [CLOUD]
    assert all(plan.server is None for plan in plans.values())
