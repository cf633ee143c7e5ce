"""Runs to reproduce, and a stand-in for the process that runs a scenario again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from laggard.analysis.evaluate.synthetic.run_generator import TraceSpec, generate_run
from laggard.analysis.tables.load_run import load_run
from laggard.analysis.tables.write_run import write_run
from laggard.campaign.run_subprocess import SubprocessRun
from laggard.core.run_schema import RunRecord
from laggard.reproduce import run_again
from tests.command_line import SMALL

HOST = {"cpu": "processor", "cores": 2, "gpu": None, "kernel": "6.1"}
Change = Callable[[Path], object]


def make_original(folder: Path, run: str = "20261126T200000.000Z-0a0a0a", **files: str) -> Path:
    """Write a run of the scenario `small` into `folder/small/<run>`."""
    data = generate_run(TraceSpec(steps=60))
    assert data.record is not None
    record = data.record.model_copy(
        update={
            "id": run,
            "scenario": "small",
            "testbed": "local",
            "versions": {"laggard": "0.1.0", "torch": "2.13.0"},
            "hosts": (HOST,),
            "started": "2026-11-26T20:00:00+00:00",
            "seeds": {"workload.seed": 3},
        }
    )
    target = write_run(replace(data, record=record), folder / "small" / run)
    (target / "stragglers.json").write_text("[]")
    (target / "scenario").mkdir()
    for name, text in {**SMALL, **{f"{k}.yaml": v for k, v in files.items()}}.items():
        (target / "scenario" / name).write_text(text)
    return target


@dataclass
class Again:
    """Stands in for `run_in_subprocess`: a run again is a copy of the original, changed or not."""

    original: Path
    change: Change = lambda _: None
    started: list[Sequence[str]] = field(default_factory=list)
    error: BaseException | None = None

    def __call__(
        self, scenario: Path, overrides: Sequence[str], runs: Path, *, command: Sequence[str], fidelity: str
    ) -> SubprocessRun:  # fmt: skip
        if self.error is not None:
            raise self.error
        self.started.append([scenario.name, *command])
        folder = runs / "small" / f"again-{len(self.started)}"
        shutil.copytree(self.original, folder)
        shutil.rmtree(folder / "scenario")
        shutil.copytree(scenario, folder / "scenario")
        self.change(folder)
        return SubprocessRun(0, {"folder": str(folder)})


def stand_in(monkeypatch: pytest.MonkeyPatch, again: Again) -> Again:
    monkeypatch.setattr(run_again, "run_in_subprocess", again)
    return again


def change_record(**values: object) -> Change:
    def change(folder: Path) -> None:
        record = RunRecord.model_validate_json((folder / "run.json").read_text())
        changed = record.model_copy(update=dict(values))
        (folder / "run.json").write_text(changed.model_dump_json())

    return change


def scale_durations(factor: float) -> Change:
    """Every step takes as many times as long, and so does the whole run."""

    def change(folder: Path) -> None:
        data = load_run(folder)
        steps = data.steps
        longer = (factor * (steps.end_ns - steps.start_ns)).astype(np.int64)
        assert data.record is not None
        assert data.record.outcome is not None
        outcome = data.record.outcome
        slower = outcome.model_copy(update={"makespan_s": factor * outcome.makespan_s})
        record = data.record.model_copy(update={"outcome": slower})
        steps = steps.with_columns(**{**columns_of(steps), "end_ns": steps.start_ns + longer})
        write_run(replace(data, record=record, steps=steps), folder)

    return change


def change_one_loss(folder: Path) -> None:
    """The least change of one loss that a float can have."""
    data = load_run(folder)
    loss = data.steps.loss.copy()
    at = len(loss) // 2
    loss[at] = np.nextafter(loss[at], 10.0)
    steps = data.steps.with_columns(**{**columns_of(data.steps), "loss": loss})
    write_run(replace(data, steps=steps), folder)


def columns_of(table: object) -> Mapping[str, np.ndarray]:
    return dict(vars(table))
