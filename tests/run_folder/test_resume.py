"""Which trainings can go on, and with what is left of their stopping rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from laggard.core.errors import InputError
from laggard.core.run_schema import RunOutcome
from laggard.layers_services.e2clab.play_inputs import PlayInputs
from laggard.run_folder.display import SilentDisplay
from laggard.run_folder.journal import Journal
from laggard.run_folder.record import create_record, record_origin
from laggard.run_folder.resuming.resume import find_resumed_run, load_resumed_scenario
from laggard.run_folder.store import RunFolder
from laggard.scenario.load import Scenario, load_scenario
from laggard.workloads.models.model_state import TrainedSoFar, save_checkpoint

MakeScenario = Callable[..., Path]


def write_run(
    scenario: Path, runs: Path, overrides: Sequence[str] = (), stopped_by: str | None = None
) -> Path:
    """A run folder without any data."""
    loaded = load_scenario(scenario, overrides)
    folder, record = RunFolder.create(runs, create_record(loaded, "local", "netem", (), ()))
    with folder:
        journal = Journal(record, folder, SilentDisplay())
        record_origin(journal, loaded)
        values = {
            "makespan_s": 1.0, "steps": 9, "accuracy": 0.5, "samples_per_s": 1.0, "bytes_sent": 1,
            "cost": None, "fairness": 1.0, "stopped_by": stopped_by,
        }  # fmt: skip
        outcome = None if stopped_by is None else RunOutcome.model_validate(values)
        journal.update(status="failed" if outcome is None else "done", outcome=outcome)
    return folder.path


def write_checkpoint(folder: Path, step: int, elapsed_s: float | None) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    save_checkpoint(folder / "checkpoint.pt", TrainedSoFar(step, elapsed_s), model, optimizer)


def resume(run: Path, runs: Path, overrides: Sequence[str] = ()) -> Scenario:
    resumed = find_resumed_run(run.name, runs)
    inputs = resumed.complete_inputs(PlayInputs(run), has_artifacts=False)
    return load_resumed_scenario(resumed, overrides, inputs)


def test_a_training_goes_on_with_what_is_left(make_scenario: MakeScenario, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = write_run(make_scenario(), runs, ["workload.stop={steps: 60, time: 50s}"], "walltime")
    write_checkpoint(first, 19, 12.5)
    scenario = resume(first, runs)
    assert (scenario.name, scenario.resumed_run) == ("small", first.name)
    assert scenario.workload.resume == str(first / "checkpoint.pt")
    assert (scenario.workload.stop.steps, scenario.workload.stop.time_s) == (60, 37.5)
    assert scenario.plays.artifacts == first / "scenario"
    # The times of two runs of the training add up.
    second = write_run(first / "scenario", runs, scenario.overrides)
    write_checkpoint(second, 29, 7.5)
    assert resume(second, runs).workload.stop.time_s == 30.0


def test_a_run_without_a_checkpoint_has_that_of_the_run_before(
    make_scenario: MakeScenario, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    first = write_run(make_scenario(), runs)
    write_checkpoint(first, 19, 12.5)
    second = write_run(first / "scenario", runs, resume(first, runs).overrides)
    again = resume(second, runs)
    assert again.workload.resume == str(first / "checkpoint.pt")
    assert again.resumed_run == second.name


@pytest.mark.parametrize(
    ("overrides", "stopped_by", "checkpoint", "reason"),
    [
        ([], None, None, "ended before its first checkpoint"),
        ([], "steps", (59, 1.0), "reached its stopping rule"),
        ([], "accuracy", (30, 1.0), "reached its stopping rule"),
        ([], "walltime", (59, 1.0), "has 60 of 60 steps"),
        (["workload.stop={time: 9s}"], "walltime", (59, 9.5), "took 9.5 s of 9 s"),
        (["workload.stop={time: 9s}"], "walltime", (59, None), "does not say how much of 9 s"),
        (["workload.strategy=asynchronous"], None, (5, 1.0), "use allreduce or ring_allreduce"),
    ],
)
def test_what_cannot_go_on_is_refused(
    overrides: list[str],
    stopped_by: str | None,
    checkpoint: tuple[int, float | None] | None,
    reason: str,
    make_scenario: MakeScenario,
    tmp_path: Path,
) -> None:
    run = write_run(make_scenario(), tmp_path / "runs", overrides, stopped_by)
    if checkpoint is not None:
        write_checkpoint(run, *checkpoint)
    with pytest.raises(InputError, match=reason):
        resume(run, tmp_path / "runs")


def test_a_file_that_is_no_checkpoint_is_refused(
    make_scenario: MakeScenario, tmp_path: Path
) -> None:
    run = write_run(make_scenario(), tmp_path / "runs")
    (run / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(InputError, match="is no checkpoint"):
        resume(run, tmp_path / "runs")
