"""`resume`: a file, and a strategy with which a checkpoint has the whole state."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.scenario.load import load_scenario
from tests.scenario.scenario_folders import problems_of, template, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = template()
    files["workload"] += "\nresume: before.pt\n"
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "before.pt").write_bytes(b"content is read by the workers")
    return write(tmp_path / "s", files)


@pytest.mark.parametrize("strategy", ["allreduce", "ring_allreduce"])
def test_a_path_starts_at_the_scenario(folder: Path, strategy: str) -> None:
    loaded = load_scenario(folder, [f"workload.strategy={strategy}"])
    assert loaded.workload.resume == str(folder / "before.pt")


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("workload.strategy=local_sgd", "with local_sgd others have their own"),
        ("workload.strategy=gossip", "with gossip others have"),
        ("workload.strategy=asynchronous", "with asynchronous others have"),
        ("workload.strategy=topk", "what compression has left out"),
        ("workload.strategy={name: allreduce, balanced_batches: {}}", "speeds by which batches"),
        ("workload.resume=none.pt", "there is no file"),
    ],
)
def test_what_cannot_go_on_is_one_problem(folder: Path, override: str, rule: str) -> None:
    problems = problems_of(folder, override)
    assert len(problems) == 1, problems
    assert rule in problems[0].rule
    assert problems[0].fix
