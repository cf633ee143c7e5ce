"""`laggard plan-model`: from a scenario to a plan, its file and its figure."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.predict.planning.model_plan import build_problem
from laggard.scenario.load import load_scenario
from laggard.workloads.planning.evaluate_plan import compute_step_s
from laggard.workloads.planning.local_search import search_plan
from laggard.workloads.planning.placement_choices import place_on
from laggard.workloads.planning.placements import ModelPlan
from laggard.workloads.planning.plan_file import read_plan
from laggard.workloads.planning.planning_problem import AffineSeconds, BlockEdge, ModelBlock
from laggard.workloads.strategies.pipeline.profile_blocks import ModelProfile
from tests.predict.scenario_folder import load, write_scenario

TIMES = (AffineSeconds(1e-4, 2e-4),) * 2
PROFILE = ModelProfile(
    (ModelBlock("first", 1e6, update_s=1e-3), ModelBlock("second", 4e6, update_s=2e-3)),
    (BlockEdge(0, 1, 256.0),),
    TIMES,
    TIMES,
)


def test_hosts_are_devices_with_their_shares_and_links(tmp_path: Path) -> None:
    unequal = {
        "deterministic": [
            {"hosts": "edge.*", "cpu": "20%", "memory": "368MiB"},
            {"hosts": "cloud.*", "cpu": "80%"},
        ]
    }
    workload: dict[str, object] = {"placement": {"workers": ["cloud.*", "edge.*"]}}
    scenario = load(tmp_path, edge=2, heterogeneity=unequal, workload=workload)
    problem = build_problem(scenario, PROFILE)
    assert [each.name for each in problem.devices] == [host.name for host in scenario.ranks]
    cloud, edge = problem.devices[0], problem.devices[1]
    assert (cloud.memory_bytes, edge.memory_bytes) == (None, 64 * 2**20)
    assert edge.forward[0].of(10) == pytest.approx(4 * cloud.forward[0].of(10))
    assert problem.links[0, 1].rate_mbps == 80
    assert problem.links[0, 1].rtt_ms == pytest.approx(10)
    # Alone on the fastest host, passes take the share of a core that it has.
    alone = ModelPlan((place_on(problem, 0),) * 2)
    passes_s = sum(4 * [TIMES[0].of(64) / 0.8])
    updates_s = problem.update_s(0, 0) + problem.update_s(0, 1)
    assert compute_step_s(problem, alone) == pytest.approx(passes_s + updates_s)
    assert search_plan(problem).step_s <= compute_step_s(problem, alone)


def test_a_scenario_is_planned_as_text_file_and_figure(tmp_path: Path) -> None:
    folder = str(write_scenario(tmp_path / "known", edge=3))
    plan, figure = tmp_path / "plan.yaml", tmp_path / "plan.svg"
    arguments = ["plan-model", folder, "--evaluations", "300"]
    text = CliRunner().invoke(main, [*arguments, "--output", str(plan), "--figure", str(figure)])
    assert text.exit_code == 0, text.output
    assert "A step takes" in text.stdout
    assert "single device edge.trainer.1.1" in text.stdout
    assert figure.read_text().startswith("<?xml")
    written = read_plan(plan)
    assert sum(written.blocks[0].devices.values()) == written.batch == 64
    document = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    known = [each for each in document["baselines_s"].values() if each is not None]
    assert document["step_s"] <= min(known)
    assert len(document["blocks"]) == len(written.blocks)
    assert all(math.isfinite(each) for each in document["memory_bytes"].values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prove", "soon"], "--prove soon"),
        (["--figure", "plan.txt"], "plan.txt"),
        (["--set", "heterogeneity.deterministic=[{hosts: '*', memory: 1MiB}]"], "needs"),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, options: list[str], message: str) -> None:
    folder = str(write_scenario(tmp_path / "known"))
    found = CliRunner().invoke(main, ["plan-model", folder, *options])
    assert found.exit_code == 2, found.output
    assert message in found.stderr


def test_a_proof_says_how_good_the_plan_is(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    folder = write_scenario(tmp_path / "known", edge=3)
    assert load_scenario(folder)
    found = CliRunner().invoke(
        main, ["plan-model", str(folder), "--evaluations", "300", "--prove", "5s", "--json"]
    )
    proof = json.loads(found.stdout)["proof"]
    assert proof["bound_s"] <= proof["step_s"] * (1 + 1e-9)


def test_hosts_that_a_plan_leaves_out_are_named_by_those_that_it_uses(tmp_path: Path) -> None:
    folder = str(write_scenario(tmp_path / "known", edge=3))
    far = 'network.networks=[{src: "*", dst: "*", delay: 500ms, rate: 10kbit}]'
    arguments = ["plan-model", folder, "--evaluations", "100"]
    found = CliRunner().invoke(
        main, [*arguments, "--set", far, "--output", str(tmp_path / "p.yaml")]
    )
    assert found.exit_code == 0, found.output
    (used,) = read_plan(tmp_path / "p.yaml").hosts
    assert f"set placement.workers to [{used}]" in found.stdout
