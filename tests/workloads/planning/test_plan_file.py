"""Files of plans: what is written is read again, and refused for anything else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from laggard.core.errors import InputError, LaggardError
from laggard.core.simulation.task_graph import schedule_in_order
from laggard.workloads.planning.evaluate_plan import evaluate_plan
from laggard.workloads.planning.local_search import SearchOptions, search_plan
from laggard.workloads.planning.placement_choices import list_replicas
from laggard.workloads.planning.placements import ModelPlan
from laggard.workloads.planning.plan_file import PlanFile, build_plan_file, read_plan, write_plan
from laggard.workloads.planning.step_tasks import build_chain_tasks, build_step_tasks
from tests.workloads.planning.generated_problems import generate_problem


def build_file() -> PlanFile:
    problem = generate_problem(1, blocks=3)
    plan = ModelPlan((list_replicas(problem, range(3))[-1],) * 3)
    return build_plan_file(problem, evaluate_plan(problem, plan))


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_is_read_as_it_was_written(tmp_path: Path, seed: int) -> None:
    problem = generate_problem(seed, blocks=3)
    found = evaluate_plan(problem, search_plan(problem, SearchOptions(evaluations=400)).plan)
    path = tmp_path / "plan.yaml"
    write_plan(path, build_plan_file(problem, found))
    content = read_plan(path)
    plan = content.to_plan()
    used = [place for place, each in enumerate(problem.devices) if each.name in content.hosts]
    assert content.hosts == tuple(problem.devices[place].name for place in used)
    kept = [tuple(each.samples[place] for place in used) for each in found.plan.placements]
    assert [each.samples for each in plan.placements] == kept
    # The numbers of tasks are the same without times, and their order gives the same step.
    sizes = [each.parameter_bytes for each in content.blocks]
    meanings = [
        dataclasses.replace(each, device=used[each.device], dst=used[each.dst])
        for each in build_chain_tasks(plan, sizes).meanings
    ]
    assert meanings == found.tasks.meanings
    again = schedule_in_order(build_step_tasks(problem, found.plan).tasks, content.order)
    assert again.makespan_s == pytest.approx(found.step_s)


def test_a_plan_for_something_else_is_refused() -> None:
    content = build_file()
    sizes = [(each.name, each.parameter_bytes) for each in content.blocks]
    content.require_model(sizes)
    assert content.find_ranks(["device 2", "device 0", "other", "device 1"]) == (1, 3, 0)
    for wrong in (sizes[:2], [*sizes[:2], ("x", sizes[2][1])], [*sizes[:2], (sizes[2][0], 1.0)]):
        with pytest.raises(InputError, match="not those of this one"):
            content.require_model(wrong)
    with pytest.raises(InputError, match="needs device"):
        content.find_ranks(["device 0", "device 9"])


@pytest.mark.parametrize(
    "hosts", [["device 0"], ["device 0", "device 1", "device 2", "x"], ["device 1"] * 3]
)
def test_hosts_are_those_of_the_blocks(hosts: list[str]) -> None:
    with pytest.raises(InputError, match="list each host of the blocks once"):
        build_file().model_copy(update={"hosts": tuple(hosts)}).to_plan()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"devices": {"device 0": 23}, "average": "none"}, "23 samples of 24"),
        ({"devices": {"device 0": 24, "device 1": 0}}, "give each at least one"),
        ({"devices": {"device 0": 12, "device 1": 12}, "average": "none"}, "need an average"),
        ({"devices": {"device 0": 12, "device 1": 12}, "average": "server"}, "need an average"),
        ({"devices": {"device 0": 24}, "average": "all_reduce"}, "need an average"),
        (
            {
                "devices": {"device 0": 12, "device 1": 12},
                "average": "server",
                "server": "device 2",
            },
            "device 2 has no samples",
        ),
    ],
)
def test_impossible_placements_are_refused(changed: dict[str, object], message: str) -> None:
    values = build_file().model_dump()
    values["blocks"] = [{**values["blocks"][0], "server": None, **changed}, *values["blocks"][1:]]
    with pytest.raises(InputError, match=message):
        PlanFile.model_validate(values).to_plan()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "blocks: 1", "batch: 0\nmicro_batches: 1\nstep_s: 1\nblocks: []", ": {"],
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(LaggardError):
        read_plan(path)
    with pytest.raises(LaggardError):
        read_plan(tmp_path / "missing.yaml")
