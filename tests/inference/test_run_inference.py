"""Requests are really answered in the hosts of an emulation, and the report says who was slow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.command_line import Laggard, laggard, make_scenario, needs_tun

__all__ = ["laggard", "make_scenario"]

pytestmark = [pytest.mark.long, needs_tun]

SLOW, FAST = "edge.trainer.1.2", "edge.trainer.1.1"
HETEROGENEITY = f"""
deterministic:
  - {{hosts: "*", cpu: 40%}}
  - {{hosts: "{SLOW}", cpu: 8%}}
"""
WORKLOAD = """
kind: inference
models: [resnet8]
dataset: {name: synthetic, train: 64, test: 64}
requests: {rate: 2, count: 12}
placement: {workers: ["edge.*"], server: cloud.trainer.1.1}
"""


def run(
    laggard: Laggard,
    make_scenario: Callable[..., Path],
    workload: str,
    name: str = "requests",
) -> tuple[dict[str, Any], pd.DataFrame, dict[str, object]]:
    """Return the figures of the devices by host, all requests, and the result of the run."""
    scenario = make_scenario(name, workload=workload, heterogeneity=HETEROGENEITY)
    record = laggard.run(scenario, report=True)
    folder = Path(str(record["folder"]))
    serving = json.loads((folder / "serving.json").read_text())
    return (
        {each["host"]: each for each in serving["devices"]},
        pd.read_parquet(folder / "requests.parquet"),
        record,
    )


def test_a_slow_device_is_named_with_its_cause(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    devices, requests, record = run(laggard, make_scenario, WORKLOAD + "split: none\n")
    assert set(devices) == {FAST, SLOW}
    assert all(each["requests"] == 12 and each["shed"] == 0 for each in devices.values())
    assert len(requests) == 24
    assert (requests["answered_s"] > requests["arrived_s"]).all()
    ratio = devices[SLOW]["parts"]["computed_s"] / devices[FAST]["parts"]["computed_s"]
    assert ratio > 2, "the slow device has a fifth of the fast one's share"
    answer = " ".join(record["answer"])  # type: ignore[arg-type]
    assert SLOW in answer
    assert FAST not in answer


def test_the_server_computes_what_a_device_leaves(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    workload = WORKLOAD.replace("resnet8", "resnet18")
    alone, _, _ = run(laggard, make_scenario, workload + "split: none\n", name="alone")
    devices, requests, _ = run(laggard, make_scenario, workload + "split: dynamic\n")
    assert devices[SLOW]["parts"]["server_s"] > 0
    assert devices[SLOW]["latency_s"]["50"] < alone[SLOW]["latency_s"]["50"] / 2
    sent = requests[requests["server_s"] > 0]
    # A single time is uncertain by the block that the server computed when the message came.
    assert sent["link_s"].mean() > 0.01, "both ways of the link take 5 ms each"


def test_neighbors_vote(laggard: Laggard, make_scenario: Callable[..., Path]) -> None:
    workload = WORKLOAD.replace(", server: cloud.trainer.1.1", "").replace('"edge.*"', '"*"')
    workload = workload.replace("{name: synthetic, train: 64, test: 64}", "digits")
    workload = workload.replace("resnet8", "mlp")
    workload += "ensemble: {ask: 2, budget: 2s}\ntrain_steps: 40\n"
    devices, requests, _ = run(laggard, make_scenario, workload)
    assert len(devices) == 3
    assert (requests["answers"] == 3).mean() > 0.9
    assert all(each["accuracy"] > 0.5 for each in devices.values())


def test_requests_beyond_capacity_are_shed_and_told(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    workload = WORKLOAD.replace("{rate: 2, count: 12}", "{rate: 200, count: 60, most_waiting: 3}")
    devices, requests, record = run(laggard, make_scenario, workload)
    assert devices[SLOW]["shed"] > 0
    assert requests["answered_s"].isna().sum() == sum(each["shed"] for each in devices.values())
    assert any("shed" in sentence for sentence in record["answer"])  # type: ignore[attr-defined]


def test_neighbors_and_servers_that_leave_are_not_waited_for(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    workload = WORKLOAD.replace("resnet8", "resnet18").replace("count: 12", "count: 20")
    workload += "split: server\nchurn: [{at: 3s, leaves: cloud.trainer.1.1}]\n"
    devices, requests, record = run(laggard, make_scenario, workload)
    assert all(each["requests"] == 20 and each["shed"] == 0 for each in devices.values())
    early, late = requests[requests["arrived_s"] < 2], requests[requests["arrived_s"] > 4]
    assert (early["server_s"] > 0).all()
    assert (late["server_s"] == 0).all()
    assert (late["computed_s"] > 0).all(), "the devices compute all blocks themselves"
    assert any("left at 3 s" in each for each in record["warnings"])  # type: ignore[attr-defined]
