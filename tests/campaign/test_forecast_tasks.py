"""Cells that simulate or predict a scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.campaign.campaign_file import load_campaign
from laggard.campaign.run_campaign import plan_cells
from laggard.campaign.tasks.registry import run_task
from laggard.core.errors import InputError
from tests.predict.scenario_folder import write_scenario

SERVER = {"workload.strategy": "parameter_server"}


def plan(folder: Path, text: str) -> list[str]:
    """The digests of the cells of a campaign file with this text."""
    (folder / "many.yaml").write_text(text)
    return [cell.digest for cell in plan_cells(load_campaign(folder / "many.yaml"))]


@pytest.mark.long
def test_a_size_is_simulated(tmp_path: Path) -> None:
    write_scenario(tmp_path / "known")
    values = {"path": "known", "scale": {"edge": 1000}, "steps": 3, "set": SERVER}
    document = run_task("simulate", values, str(tmp_path))  # type: ignore[arg-type]
    assert document["status"] == "done", document
    columns, outcome = document["columns"], document["outcome"]
    assert isinstance(columns, dict)
    assert isinstance(outcome, dict)
    assert columns["worker_count"] == 1000
    assert outcome["steps"] == 3
    assert outcome["makespan_s"] == pytest.approx(3 * columns["step_s"])
    # Sixteen samples of each of a thousand workers in a step.
    assert outcome["samples_per_s"] == pytest.approx(16_000 / columns["step_s"])
    assert 0 < columns["efficiency"] < 1


def test_a_number_of_workers_is_predicted(tmp_path: Path) -> None:
    write_scenario(tmp_path / "known", workload={"objective": {"prices": {"edge": 3600.0}}})
    document = run_task("predict", {"path": "known", "workers": "edge=2"}, str(tmp_path))
    assert document["status"] == "done", document
    columns, outcome = document["columns"], document["outcome"]
    assert isinstance(columns, dict)
    assert isinstance(outcome, dict)
    assert columns["worker_count"] == 2
    assert columns["step_s_low"] <= columns["step_s"]
    assert outcome["makespan_s"] == pytest.approx(40 * columns["step_s"])
    # A unit of price a second for each of two hosts.
    assert outcome["cost"] == pytest.approx(2 * outcome["makespan_s"])


def test_a_cell_belongs_to_its_values_and_to_the_scenario(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path / "known")
    text = "command: simulate\nvary: {path: [known], scale: [{edge: 10}, {edge: 100}]}\n"
    before = plan(tmp_path, text)
    assert len(set(before)) == 2
    assert plan(tmp_path, text) == before
    network = folder / "network.yaml"
    network.write_text(network.read_text().replace("80mbit", "81mbit"))
    assert not set(plan(tmp_path, text)) & set(before)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("command: simulate\nvary: {path: [nowhere]}", "nowhere"),
        ("command: simulate\nvary: {path: [known], set: [{workload.model: none_such}]}", "no such"),
        (
            "command: simulate\nvary: {path: [known], set: [{workload.strategy: adaptive}]}",
            "cannot",
        ),
        ("command: predict\nvary: {path: [known], recorded: [[none]]}", "no run folder"),
        ("command: predict\nvary: {path: [known], scale: [{edge: 4}]}", "scale"),
        ("command: simulate\nvary: {path: [known], steps: [0]}", "steps"),
        ("command: simulate\nscenario: known\nvary: {path: [known]}", "`scenario` is for runs"),
    ],
)
def test_bad_input_starts_nothing(tmp_path: Path, text: str, message: str) -> None:
    write_scenario(tmp_path / "known")
    with pytest.raises(InputError, match=message):
        plan(tmp_path, text)


def test_a_folder_without_a_training_is_refused(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path / "known")
    (folder / "workload.yaml").unlink()
    with pytest.raises(InputError, match="nothing is trained"):
        plan(tmp_path, "command: predict\nvary: {path: [known]}")
