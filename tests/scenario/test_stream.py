"""`stream` and `rehearsal`: what a check refuses or warns of, each at its place in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.scenario.load import load_scenario
from laggard.workloads.specification.stream import describe_stream
from tests.scenario.scenario_folders import problems_of, template, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = template()
    files["workload"] += "\nstream: {tasks: 5, passes: 40}\nrehearsal: {size: 50, sample: 4}\n"
    return write(tmp_path, files)


def test_all_is_well(folder: Path) -> None:
    loaded = load_scenario(folder)
    assert loaded.workload.stream is not None
    text = describe_stream(loaded.workload.stream, loaded.workload.rehearsal)
    assert text is not None
    assert "in 5 tasks (class_incremental)" in text
    assert "4 old ones, of up to 50" in text
    assert describe_stream(None, None) is None
    assert not [line for line in loaded.warnings if "rehearsal" in line]


def test_files_of_different_sizes_are_not_exchanged(folder: Path) -> None:
    overrides = [
        "workload.dataset={name: image_folder, folder: .}",
        "workload.rehearsal.exchange=global",
    ]
    problems = problems_of(folder, *overrides)
    assert ["different sizes" in each.rule for each in problems].count(True) == 1


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("workload.stream.tasks=11", "each task needs a class of its own"),
        (
            "workload.stream.classes=[[0, 1], [1, 2, 3, 4, 5, 6, 7, 8, 9]]",
            "class 1 is in two tasks",
        ),
        (
            "workload.stream.classes=[[0, 1], [2, 3, 4, 5, 6, 7, 8]]",
            "class 9 of the dataset is in no",
        ),
        ("workload.stream.classes=[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], []]", "a task needs a class"),
        ("workload.stream.classes=[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10]]", "has no class 10"),
        ("workload.stream.births={layers: {sky: [1]}}", "no worker is in a layer"),
        ("workload.stream.births={layers: {edge: [12]}}", "has no class 12"),
        ("workload.stream.births={layers: {edge: [1]}, concentration: 1}", "by one of"),
        ("workload.stream.births={}", "nothing says who"),
        ("workload.stream.arrivals={sky: {rate: 5}}", "no worker is in a layer"),
        ("workload.stream.arrivals={edge: {}}", "no sample ever arrives"),
        ("workload.stream.arrivals={edge: {rate: 1, burst: 5}}", "a size and a period"),
        ("workload.stream.arrivals={edge: {rate: 1, every: 5s}}", "a size and a period"),
        ("workload.stream=null", "there is none"),
        ("workload.rehearsal.size=9", "cannot hold one sample of each of the 10"),
        ("workload.strategy=gossip", "fast workers would be in later tasks"),
        ("workload.strategy=backup_workers", "fast workers would be in later tasks"),
        ("workload.strategy={name: hierarchical, defer: someday}", "averages are not deferred so"),
        (
            "workload.strategy={name: hierarchical, defer: measured, wan_steps: 8}",
            "deferred averages have no fixed period",
        ),
        (
            "workload.strategy={name: hierarchical, defer: measured, compress: fp16}",
            "compression would change them",
        ),
        (
            "workload.strategy={name: hierarchical, defer: bytes}",
            "",
        ),
        (
            "workload.strategy={name: hierarchical, defer: {name: bytes, every_mb: 0}}",
            "",
        ),
    ],
)
def test_what_cannot_be_learnt_is_one_problem(folder: Path, override: str, rule: str) -> None:
    problems = problems_of(folder, override)
    assert len(problems) == 1, problems
    assert rule in problems[0].rule
    assert problems[0].fix


def test_samples_that_are_born_at_workers_cannot_be_balanced(folder: Path) -> None:
    overrides = [
        "workload.stream.births={concentration: 0.3}",
        "workload.strategy={name: allreduce, balanced_batches: true}",
    ]
    (problem,) = problems_of(folder, *overrides)
    assert "cannot be given to a faster one" in problem.rule


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (
            ["workload.strategy=parameter_server", "workload.rehearsal.exchange=global"],
            "no group of torch",
        ),
        (
            ["workload.strategy=ring_allreduce", "workload.rehearsal.exchange=global"],
            "no group of torch",
        ),
        (
            ["workload.strategy={name: hierarchical, defer: measured}", "workload.rehearsal=null"],
            "forgetting is measured on old samples",
        ),
        (
            [
                "workload.strategy={name: hierarchical, defer: task_ends}",
                "workload.rehearsal=null",
                "workload.stream=null",
            ],
            "without a stream there are none",
        ),
    ],
)
def test_what_a_strategy_does_not_have_is_refused(
    folder: Path, overrides: list[str], rule: str
) -> None:
    (problem,) = problems_of(folder, *overrides)
    assert rule in problem.rule
    assert problem.fix


@pytest.mark.parametrize(
    "strategy",
    [
        "parameter_server",
        "{name: hierarchical, defer: task_ends, compress: fp16}",
        "{name: hierarchical, defer: {name: measured, overhead: 0.2, tolerance: 0}}",
        "{name: hierarchical, defer: drift}",
        "{name: hierarchical, defer: {name: bytes, every_mb: 1}, compress: fp16}",
    ],
)
def test_strategies_in_lockstep_learn_from_a_stream(folder: Path, strategy: str) -> None:
    assert load_scenario(folder, [f"workload.strategy={strategy}"]).workload.stream is not None


def test_more_old_samples_than_new_ones_are_warned_of(folder: Path) -> None:
    loaded = load_scenario(folder, ["workload.rehearsal.sample=5000"])
    (line,) = [line for line in loaded.warnings if "rehearsal" in line]
    assert "old ones" in line


@pytest.mark.parametrize(("steps", "fits"), [(160, True), (180, True), (181, False)])
def test_a_training_that_is_longer_than_any_such_stream_is_one_problem(
    folder: Path, steps: int, fits: bool
) -> None:
    """4,000 samples in batches of 256 are 15 whole batches, and 5 tasks may end with smaller ones:
    20 steps a pass at most. Each task has 800 samples, so the stream has 16 of them."""
    overrides = ["workload.dataset=mnist_5k", "workload.batch_size=256"]
    problems = problems_of(
        folder, *overrides, "workload.stream.passes=9", f"workload.stop={{steps: {steps}}}"
    )
    assert [problem.value for problem in problems] == ([] if fits else [f"stop.steps: {steps}"])
    assert fits or "180 steps at most" in problems[0].rule
