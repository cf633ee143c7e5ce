"""Files of plans: what is written is read again, and refused for anything else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from laggard.core.errors import InputError, LaggardError
from laggard.workloads.planning.evaluate_plan import compute_step_s
from laggard.workloads.planning.local_search import SearchOptions, search_plan
from laggard.workloads.planning.placements import ModelPlan, list_placements
from laggard.workloads.planning.plan_file import (
    build_plan_file,
    read_plan,
    restore_plan,
    write_plan,
)
from tests.workloads.planning.generated_problems import generate_problem


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_is_read_as_it_was_written(tmp_path: Path, seed: int) -> None:
    problem = generate_problem(seed, blocks=5)
    found = search_plan(problem, SearchOptions(evaluations=400))
    path = tmp_path / "plan.yaml"
    write_plan(path, build_plan_file(problem, found.plan, found.step_s))
    restored = restore_plan(read_plan(path), problem)
    assert restored == found.plan
    assert compute_step_s(problem, restored) == found.step_s


def test_a_plan_for_something_else_is_refused() -> None:
    problem = generate_problem(1, blocks=3)
    placements = list_placements(problem)
    content = build_plan_file(problem, ModelPlan((placements[-1],) * 3), 1.0)
    assert restore_plan(content, problem)
    faster = dataclasses.replace(problem, links={})
    assert restore_plan(content, faster), "speeds and links may change"
    others = [
        dataclasses.replace(problem, batch=12),
        dataclasses.replace(
            problem,
            blocks=problem.blocks[:2],
            edges=problem.edges[:1],
            devices=tuple(
                dataclasses.replace(each, forward=each.forward[:2], backward=each.backward[:2])
                for each in problem.devices
            ),
        ),
        dataclasses.replace(
            problem,
            devices=tuple(
                dataclasses.replace(each, name=f"other {each.name}") for each in problem.devices
            ),
        ),
    ]
    for other in others:
        with pytest.raises(InputError, match="another model, other devices or another batch"):
            restore_plan(content, other)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"device 0": 24, "device 9": 1}, "1 samples on device 9"),
        ({"device 0": 23}, "23 samples of 24"),
        ({"device 0": 24, "device 1": 0}, "0 samples on device 1"),
    ],
)
def test_impossible_placements_are_refused(devices: dict[str, int], message: str) -> None:
    problem = generate_problem(1, blocks=3)
    content = build_plan_file(problem, ModelPlan((list_placements(problem)[0],) * 3), 1.0)
    block = content.blocks[0].model_copy(update={"devices": devices})
    wrong = content.model_copy(update={"blocks": (block, *content.blocks[1:])})
    with pytest.raises(InputError, match=message):
        restore_plan(wrong, problem)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "blocks: 1", "problem: x\nbatch: 0\nmicro_batches: 1\nstep_s: 1\nblocks: []", ": {"],
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(LaggardError):
        read_plan(path)
    with pytest.raises(LaggardError):
        read_plan(tmp_path / "missing.yaml")
