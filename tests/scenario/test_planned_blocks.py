"""Plans that a scenario names: read, checked against its workers, and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from laggard.core.errors import ScenarioError
from laggard.scenario.load import Scenario, load_scenario
from laggard.workloads.planning.plan_file import PlanFile
from laggard.workloads.strategies.pipeline.parameters import PlannedParameters
from tests.predict.scenario_folder import write_scenario

HOSTS = [f"edge.trainer.1.{number}" for number in (1, 2)]


def build_plan(**changed: object) -> dict[str, object]:
    block = {
        "name": "all",
        "parameter_bytes": 4.0,
        "devices": dict.fromkeys(HOSTS, 32),
        "average": "all_reduce",
    }
    return {
        "batch": 64,
        "micro_batches": 1,
        "step_s": 1.0,
        "hosts": HOSTS,
        "blocks": [block],
        "order": list(range(7)),
        **changed,
    }


def load_planned(
    folder: Path, plan: object, *, name: str = "plan.yaml", per_host: int = 1, edge: int = 2
) -> Scenario:
    strategy = {"name": "planned", "plan": name}
    placement = {"workers": ["edge.*"], "server": "cloud.*", "per_host": per_host}
    write_scenario(folder, edge=edge, workload={"strategy": strategy, "placement": placement})
    if plan is not None:
        (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    return load_scenario(folder)


def test_the_content_of_a_plan_is_part_of_the_scenario(tmp_path: Path) -> None:
    scenario = load_planned(tmp_path / "mine", build_plan())
    strategy = scenario.workload.strategy
    assert isinstance(strategy, PlannedParameters)
    assert isinstance(strategy.plan, PlanFile)
    assert strategy.plan.hosts == tuple(HOSTS)
    assert strategy.describe() == "planned, 1 blocks, 1 micro-batches"
    # A run keeps the file, so that it can be run again.
    assert "plan.yaml" in scenario.files()


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        (None, {}, "plan"),
        ([1], {}, "plan.yaml"),
        (build_plan(hosts=[*HOSTS, "x"]), {}, "hosts: x is not once"),
        (build_plan(hosts=[*HOSTS, HOSTS[0]]), {}, "list each host"),
        (build_plan(batch=65), {}, "batch_size is 64"),
        (build_plan(), {"per_host": 2}, "set placement.per_host to 1"),
        (build_plan(), {"edge": 3}, "gives no block to edge.trainer.1.3"),
        (build_plan(), {"edge": 1}, "needs edge.trainer.1.2"),
        (build_plan(), {"name": "../plan.yaml"}, "inside the scenario folder"),
        (build_plan(), {"name": "/plan.yaml"}, "inside the scenario folder"),
        (build_plan(), {"name": "plan.txt"}, "must be a .yaml file"),
    ],
)
def test_another_plan_is_refused_at_its_line(
    tmp_path: Path, plan: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_planned(tmp_path / "mine", plan, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
