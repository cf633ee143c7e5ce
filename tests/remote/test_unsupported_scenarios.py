"""What a scenario asks for and real machines cannot have is refused at its line, before anything is
reserved or started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.errors import ScenarioError
from laggard.remote.provision import plan_machines, require_supported
from laggard.remote.testbeds.registry import REMOTE_TESTBEDS
from laggard.scenario.load import load_scenario
from laggard.workloads.strategies.registry import list_whole_model_strategies
from tests.scenario.scenario_folders import template, write

HETEROGENEITY = """\
deterministic:
  - {hosts: "edge.*", downlink: 50mbit}
  - {between: ["edge.*", "*"], shared: 9mbit}
"""
INPUT_IS_WRONG = 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "mine", {**template(), "heterogeneity": HETEROGENEITY})


@pytest.mark.parametrize("testbed", sorted(REMOTE_TESTBEDS))
def test_a_bottleneck_between_many_is_refused(testbed: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        plan_machines(load_scenario(folder), REMOTE_TESTBEDS[testbed]())
    (problem,) = caught.value.problems
    assert (Path(problem.path).name, problem.line, problem.column) == ("heterogeneity.yaml", 3, 15)
    assert problem.value == "edge.* and *"
    assert "each of its hosts sends and receives" in problem.rule
    assert "run with --on local" in problem.fix


@pytest.mark.parametrize("testbed", sorted(REMOTE_TESTBEDS))
@pytest.mark.parametrize("command", ["plan", "run"])
def test_plan_and_run_say_the_same(
    command: str, testbed: str, folder: Path, tmp_path: Path
) -> None:
    runs = ("--runs", str(tmp_path / "runs")) if command == "run" else ()
    result = CliRunner().invoke(main, [command, str(folder), "--on", testbed, *runs])
    assert result.exit_code == INPUT_IS_WRONG
    assert "heterogeneity.yaml:3:15: edge.* and *:" in result.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("testbed", sorted(REMOTE_TESTBEDS))
def test_drives_and_memory_are_not_refused(testbed: str, tmp_path: Path) -> None:
    text = """\
deterministic:
  - {hosts: "edge.*", read: 20MB/s, write_latency: 2ms, memory: 1GiB}
dynamic:
  - {at: 20s, for: 10s, hosts: "edge.*", read: 1MB/s}
"""
    require_supported(
        load_scenario(write(tmp_path / "drives", {**template(), "heterogeneity": text})),
        REMOTE_TESTBEDS[testbed](),
    )


@pytest.mark.parametrize("testbed", sorted(REMOTE_TESTBEDS))
@pytest.mark.parametrize("strategy", list_whole_model_strategies())
def test_no_strategy_is_refused(strategy: str, testbed: str, tmp_path: Path) -> None:
    require_supported(
        load_scenario(write(tmp_path / "any", template()), [f"workload.strategy={strategy}"]),
        REMOTE_TESTBEDS[testbed](),
    )


@pytest.mark.parametrize("testbed", sorted(REMOTE_TESTBEDS))
def test_workers_that_leave_and_join_are_not_refused(testbed: str, tmp_path: Path) -> None:
    settings = [
        "workload.strategy=asynchronous",
        "workload.churn=[{at: 9s, leaves: edge.trainer.1.1}]",
    ]
    scenario = load_scenario(write(tmp_path / "churn", template()), settings)
    require_supported(scenario, REMOTE_TESTBEDS[testbed]())


def test_a_laptop_can_have_it(folder: Path) -> None:
    result = CliRunner().invoke(main, ["plan", str(folder)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--on", "ssh", "--queue", "production"],
            "--queue: valid only with --on g5k, not with --on ssh",
        ),
        (["--hosts", "machines.yaml"], "--hosts: valid only with --on ssh, not with --on local"),
        (
            ["--job", "7", "--kavlan"],
            "--kavlan, --job: valid only with --on g5k, not with --on local",
        ),
        (["--on", "g5k", "--patience", "60"], "give --reservation-timeout 60"),
    ],
)
def test_an_option_of_another_testbed_is_refused(
    options: list[str], message: str, folder: Path
) -> None:
    result = CliRunner().invoke(main, ["plan", str(folder), *options])
    assert result.exit_code == INPUT_IS_WRONG
    assert message in result.output
