"""What each node's agent is told, as values."""

from __future__ import annotations

from pathlib import Path

from laggard.drive import DriveLimits
from laggard.experiments.remote.planning import agent_plans
from laggard.experiments.scenario import Scenario, load_scenario
from tests.experiments.conftest import SMALL

CLOUD, EDGE, FAR = "cloud.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2"
HETEROGENEITY = """
deterministic:
  - {hosts: "edge.trainer.1.1", cpu: 20%, memory: 1GiB}
  - {hosts: "edge.trainer.1.2", read: 2MB/s}
dynamic:
  - {at: 1s, for: 1s, hosts: "cloud.*", write_latency: 5ms}
"""


def loaded(folder: Path) -> Scenario:
    for name, text in {**SMALL, "heterogeneity.yaml": HETEROGENEITY}.items():
        (folder / name).write_text(text)
    return load_scenario(folder)


def test_every_node_is_told_its_own_limits_and_its_workers_their_own_drive(tmp_path: Path) -> None:
    plans = agent_plans(loaded(tmp_path), {name: f"/var/{name}" for name in (CLOUD, EDGE, FAR)}, {})
    assert {name: plan.share for name, plan in plans.items()} == {CLOUD: None, EDGE: 0.2, FAR: None}
    assert {name: plan.memory_bytes for name, plan in plans.items()} == {CLOUD: None, EDGE: 1 << 30, FAR: None}
    assert plans[CLOUD].drive == DriveLimits(), "what an event limits later has a drive from the start"
    assert plans[EDGE].drive is None
    assert plans[FAR].drive == DriveLimits(read_mb_per_s=2.0)
    drives = {worker.host: worker.drive for plan in plans.values() for worker in plan.workers}
    assert drives == {CLOUD: f"/var/{CLOUD}/drives/{CLOUD}", EDGE: None, FAR: f"/var/{FAR}/drives/{FAR}"}
