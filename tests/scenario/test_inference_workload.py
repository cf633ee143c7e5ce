"""A `workload.yaml` of `kind: inference`: loaded, and refused for what cannot be served."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.errors import ScenarioError
from laggard.reproduce.program_trust import list_programs
from laggard.scenario.load import load_scenario
from laggard.workloads.inference_workload import InferenceWorkload
from tests.command_line import SMALL

GOOD = """kind: inference
models: [cnn, mlp]
dataset: digits
requests: {rate: 4, count: 10, deadline: 200ms, batch: 2}
placement: {workers: ["edge.*"], server: cloud.trainer.1.1}
split: dynamic
order: sparsity_aware
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    folder = tmp_path / "scenario"
    folder.mkdir()
    for name, text in SMALL.items():
        (folder / name).write_text(text)
    (folder / "workload.yaml").write_text(GOOD)
    return folder


def test_it_is_loaded_and_trains_nothing(scenario: Path) -> None:
    loaded = load_scenario(scenario)
    workload = loaded.application
    assert isinstance(workload, InferenceWorkload)
    assert workload.models == ("cnn", "mlp")
    assert workload.requests.deadline_s == pytest.approx(0.2)
    assert workload.batch_size == 2
    assert not loaded.trains
    assert "inference" in loaded.untrained_reason
    assert list_programs(loaded) == ()


def test_functions_of_a_strangers_scenario_are_listed(scenario: Path) -> None:
    loaded = load_scenario(scenario, ["workload.models=[here.there:build]"])
    assert "workload.yaml: model here.there:build" in list_programs(loaded)


def test_a_file_of_arrivals_is_kept_with_the_run(scenario: Path) -> None:
    (scenario / "times.csv").write_text("seconds\n0.5\n1\n")
    loaded = load_scenario(scenario, ["workload.requests.arrivals=times.csv"])
    assert loaded.files()["times.csv"] == b"seconds\n0.5\n1\n"
    assert isinstance(loaded.application, InferenceWorkload)
    assert loaded.application.read_arrivals(scenario) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("requests.deadline=-1s", "deadline"),
        ("requests.deadline=0s", "no request can be answered before it arrives"),
        ("requests.rate=0", "greater than 0"),
        ("requests.count=0", "at least 1"),
        ("requests.arrivals=missing.csv", "missing.csv"),
        ("requests.arrivals=../elsewhere.csv", "outside of the scenario's folder"),
        ("models=[cmm]", "no such model"),
        ("models=[]", "at least 1"),
        ("order=quick", "fcfs"),
        ("split=often", "dynamic"),
        ("placement={workers: [edge.*]}", "split dynamic needs a server"),
        ("placement={workers: [fog.*], server: cloud.trainer.1.1}", "matches no host"),
        ("placement={workers: [cloud.*], server: cloud.trainer.1.1}", "the server itself"),
        ("dataset={name: synthetic, kind: tokens}", "this model takes images"),
        ("dataset={name: cifar10, folder: nowhere}", "there is no folder"),
        ("ensemble={ask: 0, budget: 1s}", "ensemble"),
        ("churn=[{at: 1s, leaves: fog.*}]", "matches no host"),
        ("churn=[{at: 1s, joins: edge.*}]", "cannot join later"),
        ("speed=high", "speed"),
    ],
)
def test_what_cannot_be_served_is_refused(scenario: Path, override: str, rule: str) -> None:
    with pytest.raises(ScenarioError, match=rule):
        load_scenario(scenario, [f"workload.{override}"])


def test_an_ensemble_needs_a_neighbor(scenario: Path) -> None:
    texts = [
        "workload.placement={workers: [edge.trainer.1.1]}",
        "workload.split=none",
        "workload.ensemble={ask: 2, budget: 100ms}",
    ]
    with pytest.raises(ScenarioError, match="at least one neighbor"):
        load_scenario(scenario, texts)


def test_votes_of_different_models_cannot_be_cut(scenario: Path) -> None:
    with pytest.raises(ScenarioError, match="models of its own"):
        load_scenario(scenario, ["workload.ensemble={ask: 1, budget: 100ms}"])
