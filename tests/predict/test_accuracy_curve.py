"""Time to an accuracy, from runs that reached it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from laggard.analysis.evaluate.synthetic.run_generator import generate_run
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.write_run import write_run
from laggard.core.cost_model.step_seconds import StepSeconds
from laggard.predict.accuracy_curve import (
    AccuracyCurve,
    RecordedLearning,
    find_samples_to_accuracy,
)
from laggard.predict.forecast import Forecast
from laggard.scenario.load import load_scenario
from laggard.workloads.workload import Workload
from tests.analysis.traces import quiet
from tests.predict.scenario_folder import write_scenario

STEPS, RANKS = 12, 4
ACCURACIES = {1: 0.5, 3: 0.96, 4: 0.90, 6: 0.95, 7: 0.97, 9: 0.99}
"""Accuracy after some steps: three in a row have reached 95 % after step 9."""


def make_run(accuracies: dict[int, float]) -> RunData:
    run = generate_run(quiet(RANKS, STEPS))
    accuracy = np.array([accuracies.get(int(step), np.nan) for step in run.steps.step])
    return dataclasses.replace(run, steps=dataclasses.replace(run.steps, accuracy=accuracy))


def forecast(*, workers: int = RANKS, batch_size: int = 64) -> Forecast:
    return Forecast(workers, 16, StepSeconds(0.9, 1.0, 1.2), batch_size, {}, 0.0, "edge")


def test_the_third_evaluation_in_a_row_counts() -> None:
    run = make_run(ACCURACIES)
    samples = int(run.steps.samples[run.steps.step == 0].sum())
    assert find_samples_to_accuracy(run, 0.95) == 10 * samples
    assert find_samples_to_accuracy(run, 0.5) == 5 * samples
    assert find_samples_to_accuracy(run, 0.98) is None


def test_dropped_samples_taught_nothing() -> None:
    run = make_run(ACCURACIES)
    dropped = np.where(run.steps.step == 0, run.steps.samples, 0)
    less = dataclasses.replace(run, steps=dataclasses.replace(run.steps, dropped=dropped))
    samples = int(run.steps.samples[run.steps.step == 0].sum())
    assert find_samples_to_accuracy(less, 0.95) == 9 * samples


@pytest.mark.parametrize(
    ("strategy", "workers", "batch_size", "known"),
    [
        ("allreduce", RANKS, 64, True),
        ("allreduce", 8, 64, True),
        ("allreduce", RANKS, 128, False),
        ("local_sgd", RANKS, 64, True),
        ("local_sgd", 8, 64, False),
    ],
)
def test_only_runs_that_learn_alike_tell(
    strategy: str, workers: int, batch_size: int, *, known: bool
) -> None:
    curve = AccuracyCurve(
        strategy, (RecordedLearning(RANKS, 64, 640), RecordedLearning(RANKS, 64, 1280))
    )
    found = curve.forecast_s(forecast(workers=workers, batch_size=batch_size))
    # 10 and 20 steps of 0.9 to 1.2 s.
    assert found == (StepSeconds(9.0, 15.0, 24.0) if known else None)


def write_recorded(tmp_path: Path, **workload: object) -> Path:
    folder = tmp_path / "recorded"
    write_run(make_run(ACCURACIES), folder)
    write_scenario(folder / "scenario", workload=workload or None)
    return folder


def load_workload(tmp_path: Path, **stop: object) -> Workload:
    return load_scenario(
        write_scenario(tmp_path / "wanted", workload={"stop": stop or {"accuracy": 0.95}})
    ).workload


def test_a_run_of_the_same_training_is_read(tmp_path: Path) -> None:
    curve = AccuracyCurve.read([write_recorded(tmp_path)], load_workload(tmp_path))
    assert curve is not None
    assert [(each.workers, each.batch_size) for each in curve.learned] == [(RANKS, 64)]
    assert curve.notes == ()


def test_a_run_of_another_training_is_named(tmp_path: Path) -> None:
    folder = write_recorded(tmp_path, optimizer="adam")
    curve = AccuracyCurve.read([folder], load_workload(tmp_path))
    assert curve is not None
    assert curve.learned == ()
    assert "another optimizer" in curve.notes[0]


def test_a_run_that_fell_short_is_named(tmp_path: Path) -> None:
    curve = AccuracyCurve.read([write_recorded(tmp_path)], load_workload(tmp_path, accuracy=0.999))
    assert curve is not None
    assert "did not reach an accuracy of 99.9 %" in curve.notes[0]


def test_a_training_that_ends_by_steps_has_no_accuracy(tmp_path: Path) -> None:
    folder = write_recorded(tmp_path)
    assert AccuracyCurve.read([folder], load_workload(tmp_path, steps=10)) is None
    assert AccuracyCurve.read([], load_workload(tmp_path)) is None
