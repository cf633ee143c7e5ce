"""`laggard simulate`: small scenarios against the simulation by events, and large ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.cost_model.message_handling import MessageHandling
from laggard.core.errors import InputError
from laggard.core.simulation.crowd.absences import WrittenAbsences
from laggard.predict.forecast import require_predictable
from laggard.predict.planned_training import MessageSizes, plan_training
from laggard.predict.simulation.crowd_absences import plan_absences
from laggard.predict.simulation.crowd_scenario import CrowdTraining
from laggard.predict.simulation.simulate_scenario import SimulationOptions, parse_scales
from laggard.scenario.load import Scenario, load_scenario
from tests.predict.scenario_folder import load, write_scenario

HANDLING = MessageHandling(0.002, 0.001, fixed_s=0.001, ring_part_s=0.0005)
STEPS = 12


def _training(scenario: Scenario, step_s: float = 0.2) -> CrowdTraining:
    planned = plan_training(
        scenario, [step_s] * len(scenario.ranks), MessageSizes(1e6), HANDLING, STEPS
    )
    return CrowdTraining.of(
        require_predictable(scenario), planned, spread=0.0, absences=plan_absences(scenario)
    )


@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce",
        {"name": "local_sgd", "steps": 4},
        {"name": "diloco", "steps": 3},
        "parameter_server",
        "asynchronous",
        {"name": "bounded_staleness", "staleness": 2},
        {"name": "backup_workers", "backups": 1},
        "gossip",
        "hop",
        "partial_reduce",
        "ad_psgd",
    ],
)
@pytest.mark.parametrize("edge", [2, 6])
def test_a_small_crowd_is_the_scenario(tmp_path: Path, strategy: object, edge: int) -> None:
    training = _training(load(tmp_path, edge=edge, workload={"strategy": strategy}))
    found = training.simulate({}, STEPS, np.random.default_rng(1))
    exact = training.strategy.simulate(training.sim_input).makespan_s
    assert found.makespan_s == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("edge", [4, 8])
def test_a_larger_crowd_is_the_larger_scenario(tmp_path: Path, edge: int) -> None:
    workload: dict[str, object] = {"strategy": "parameter_server"}
    small = _training(load(tmp_path / "small", edge=2, workload=workload))
    large = _training(load(tmp_path / "large", edge=edge, workload=workload))
    found = small.simulate({"edge": edge}, STEPS, np.random.default_rng(1))
    exact = large.strategy.simulate(large.sim_input).makespan_s
    assert found.makespan_s == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    "strategy", ["parameter_server", "asynchronous", "gossip", "allreduce", "partial_reduce"]
)
def test_slow_links_are_followed(tmp_path: Path, strategy: str) -> None:
    slow = {"dynamic": [{"at": "1s", "for": "2s", "src": "edge.*", "dst": "*", "rate": "20mbit"}]}
    options = {"edge": 6, "workload": {"strategy": strategy}}
    usual = _training(load(tmp_path / "usual", **options))
    training = _training(load(tmp_path / "slow", heterogeneity=slow, **options))
    found = training.simulate({}, STEPS, np.random.default_rng(1)).makespan_s
    exact = training.strategy.simulate(training.sim_input).makespan_s
    # The events take the rates at the begin of an all-reduce for all of it.
    assert found == pytest.approx(exact, rel=0.1)
    assert found > 1.05 * usual.simulate({}, STEPS, np.random.default_rng(1)).makespan_s


def test_a_bottleneck_of_a_ring_is_shared_by_its_links(tmp_path: Path) -> None:
    shared = {"deterministic": [{"between": ["edge.*", "edge.*"], "shared": "40mbit"}]}
    training = _training(load(tmp_path, edge=4, heterogeneity=shared))
    found = training.simulate({}, STEPS, np.random.default_rng(1))
    exact = training.strategy.simulate(training.sim_input).makespan_s
    assert found.makespan_s == pytest.approx(exact, rel=0.05)


CHURN = [
    {"at": "1s", "leaves": "edge.trainer.1.1"},
    {"at": "4s", "joins": "edge.trainer.1.1"},
    {"at": "2s", "joins": "edge.trainer.1.2"},
]


def test_written_churn_is_that_of_the_hosts(tmp_path: Path) -> None:
    workload = {"strategy": "asynchronous", "churn": CHURN}
    scenario = load(tmp_path, edge=4, workload=workload)
    found = plan_absences(scenario)
    assert found == {
        0: WrittenAbsences(((1.0, 4.0),)),
        1: WrittenAbsences(((0.0, 2.0),)),
    }
    training = _training(scenario)
    assert [each.workers for each in training.scale({"edge": 100}).classes] == [25, 25, 50]


def test_drawn_churn_is_drawn_for_each_of_many_workers(tmp_path: Path) -> None:
    write_scenario(
        tmp_path,
        edge=4,
        workload={
            "strategy": "asynchronous",
            "churn": {"lifetimes": "lives.csv", "back_after": "3s"},
            "stop": {"steps": 40, "time": "200s"},
        },
    )
    (tmp_path / "lives.csv").write_text("seconds,censored\n2,0\n4,0\n6,0\n")
    training = _training(load_scenario(tmp_path))
    crowd = training.scale({"edge": 1000})
    assert [each.workers for each in crowd.classes] == [1000]
    found = training.simulate({"edge": 1000}, 40, np.random.default_rng(1))
    always = replace(training, absences={}).simulate({"edge": 1000}, 40, np.random.default_rng(1))
    # A life of four seconds and three of absence.
    assert found.makespan_s > always.makespan_s


def test_workers_that_compute_alike_are_a_class(tmp_path: Path) -> None:
    unequal = {
        "deterministic": [
            {"hosts": "edge.*", "cpu": "20%"},
            {"hosts": "edge.trainer.1.1", "uplink": "1mbit"},
        ]
    }
    training = _training(
        load(
            tmp_path,
            edge=4,
            heterogeneity=unequal,
            workload={
                "strategy": "parameter_server",
                "placement": {"workers": ["edge.*", "cloud.*"], "server": "cloud.*"},
            },
        )
    )
    crowd = training.scale({"edge": 1000})
    assert [each.workers for each in crowd.classes] == [250, 750, 1]
    assert crowd.classes[0].up_s > 50 * crowd.classes[1].up_s


def test_a_link_that_all_share_is_a_queue(tmp_path: Path) -> None:
    shared = {"deterministic": [{"between": ["edge.*", "cloud.*"], "shared": "40mbit"}]}
    workload: dict[str, object] = {"strategy": "parameter_server"}
    training = _training(load(tmp_path, edge=4, heterogeneity=shared, workload=workload))
    found = training.simulate({}, STEPS, np.random.default_rng(1))
    exact = training.strategy.simulate(training.sim_input).makespan_s
    assert found.makespan_s == pytest.approx(exact, rel=0.15)


def test_a_million_workers(tmp_path: Path) -> None:
    training = _training(load(tmp_path, edge=2))
    found = training.simulate({"edge": 10**6}, 3, np.random.default_rng(1))
    assert found.steps == 3 * 10**6
    assert found.makespan_s > 2 * 10**6 * 3 * 0.010


def test_a_tier_of_one_worker_has_no_known_links_inside(tmp_path: Path) -> None:
    training = _training(load(tmp_path, edge=1))
    with pytest.raises(InputError, match="give the tier two workers"):
        training.simulate({"edge": 10}, STEPS, np.random.default_rng(1))


@pytest.mark.parametrize(
    "texts",
    [
        ["edge"],
        ["=1"],
        ["edge=x"],
        ["edge=0"],
        ["edge=1,"],
        ["edge=999999999"],
        ["edge=1", "edge=2"],
        ["edge=1,2", "fog=1,2,3"],
        ["edge=-1"],
        ["edge=1.5"],
    ],
)
def test_other_sizes_are_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="--scale"):
        parse_scales(texts)


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"steps": 10**9}, {"spread": -1.0}, {"spread": float("nan")}]
)
def test_other_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        SimulationOptions(**wrong)  # type: ignore[arg-type]


def test_a_scenario_is_simulated_as_text_and_as_json(tmp_path: Path) -> None:
    folder = str(write_scenario(tmp_path / "known", workload={"strategy": "parameter_server"}))
    arguments = ["simulate", folder, "--scale", "edge=8,2000", "--steps", "5", "--spread", "0.2"]
    text = CliRunner().invoke(main, arguments)
    assert text.exit_code == 0, text.output
    assert "2,000" in text.stdout
    document = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert [each["workers"] for each in document["scales"]] == [4, 8, 2000]
    efficiencies = [each["efficiency"] for each in document["scales"]]
    assert efficiencies[0] == 1.0
    assert efficiencies == sorted(efficiencies, reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scale", "fog=9"], "no workers are in this tier"),
        (["--scale", "edge=9", "--steps", "0"], "0 steps"),
        (["--scale", "edge=9", "--spread", "-1"], "spread"),
        (
            ["--scale", "edge=9", "--set", "workload.strategy={name: gossip, graph: complete}"],
            "choose the graph `ring`",
        ),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, options: list[str], message: str) -> None:
    folder = str(write_scenario(tmp_path / "known"))
    found = CliRunner().invoke(main, ["simulate", folder, *options])
    assert found.exit_code == 2
    assert message in found.stderr
