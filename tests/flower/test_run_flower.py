"""A Flower app runs on the emulated continuum, and its report says who was slow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import Laggard, laggard, make_scenario, needs_tun
from tests.flower.conftest import APP

__all__ = ["laggard", "make_scenario"]

pytestmark = [pytest.mark.long, needs_tun]

HETEROGENEITY = """
deterministic:
  - {hosts: "cloud.*", cpu: 60%}
  - {hosts: "edge.trainer.1.1", cpu: 70%}
  - {hosts: "edge.trainer.1.2", cpu: 35%}
"""
CLIENTS = ("edge.trainer.1.1", "edge.trainer.1.2")


def write_workload(app: Path, python: Path) -> str:
    return f"flower: {app}\npython: {python}\n"


def test_its_rounds_bytes_and_stragglers_are_known(
    laggard: Laggard, make_scenario: Callable[..., Path], flower_python: Path
) -> None:
    workload = write_workload(APP, flower_python)
    scenario = make_scenario("app", workload=workload, heterogeneity=HETEROGENEITY)
    record = laggard.run(scenario, report=True)
    folder = Path(str(record["folder"]))
    assert json.loads((folder / "run.json").read_text())["strategy"]["name"] == "flower"
    federated = json.loads((folder / "federated.json").read_text())
    ranks = [{each["rank"] for each in round_["answers"]} for round_ in federated["rounds"]]
    assert ranks == [{0, 1}] * 3, "each of the clients is in each of three rounds"
    outcomes = {each["outcome"] for round_ in federated["rounds"] for each in round_["answers"]}
    assert outcomes == {"accepted"}
    document = json.loads((folder / "flower.json").read_text())
    assert document["rounds"][2]["metrics"]["evaluate"]["eval_acc"] > 0.6
    carried = {
        (each["src"], each["dst"]): each["bytes"]
        for each in json.loads((folder / "counters.json").read_text())["links"]
    }
    for client in CLIENTS:
        # Three models and an update each way, of 500 numbers of 8 bytes.
        assert carried["cloud.trainer.1.1", client] > 3 * 4000
        assert carried[client, "cloud.trainer.1.1"] > 3 * 4000
    assert (folder / "report.html").exists()
    assert any("round" in sentence for sentence in record["answer"])  # type: ignore[attr-defined]


def test_an_app_that_fails_fails_the_run(
    laggard: Laggard, make_scenario: Callable[..., Path], flower_python: Path, tmp_path: Path
) -> None:
    app = tmp_path / "broken"
    shutil.copytree(APP, app)
    server = app / "quickstart/server_app.py"
    text = server.read_text()
    server.write_text(text.replace("    FedAvg()", "    raise ValueError\n    FedAvg()"))
    scenario = make_scenario("app", workload=write_workload(app, flower_python))
    record = laggard.run(scenario, status=1)
    assert record["status"] == "failed"
    assert "Flower app ended as finished:failed" in str(record["error"])
    assert "logs/app.log" in str(record["error"])


def test_an_environment_without_flower_is_refused_before_anything_starts(
    laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    scenario = make_scenario("app", workload=write_workload(APP, Path("/usr/bin/python3")))
    process = laggard.start("run", str(scenario))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "Flower is not installed beside /usr/bin/python3" in errors
    assert not laggard.runs.exists()
