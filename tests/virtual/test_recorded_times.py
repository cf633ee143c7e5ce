"""Clients' times from a recorded run, whose spans are written from known times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from laggard.analysis.tables.columns import SpanColumns
from laggard.analysis.tables.load_run import RunData, load_run
from laggard.analysis.tables.write_run import write_run
from laggard.cli.main import main
from laggard.core.cost_model.limited_core import expected_efficiency
from laggard.core.span_schema import NO_GROUP, NO_PEER, Lane, Phase
from laggard.scenario.load import load_scenario
from laggard.virtual.plan_simulation import plan_simulation
from laggard.virtual.recorded_times import RecordedTimes
from laggard.workloads.clients.local_steps import list_local_steps
from laggard.workloads.output.worker_output import WorkerOutputDir
from tests.virtual.federated_scenario import SHARES, write_federated

BATCH, EPOCHS, OVERHEAD_S = 32, 2, 0.004
EVERYBODY = {"strategy": {"name": "federated", "clients": 4, "local_epochs": EPOCHS}}


def step_s(samples: int) -> float:
    return 0.001 + 0.0001 * samples


def overhead_s(share: float) -> float:
    return OVERHEAD_S / share / expected_efficiency(share)


def list_known_spans(samples: int, share: float) -> Iterator[tuple[Phase, float, int]]:
    for size in list_local_steps(samples, BATCH) * EPOCHS:
        yield Phase.FORWARD, 0.25 * step_s(size) / share, size
        yield Phase.BACKWARD, 0.75 * step_s(size) / share, size
    yield Phase.OTHER, overhead_s(share), 0
    yield Phase.COMM, 1.0, 0


def write_known_spans(run: RunData) -> SpanColumns:
    """Return the spans of the same rounds, with known times."""
    rows = []
    steps = run.steps
    for step, rank, samples in zip(steps.step, steps.rank, steps.samples, strict=True):
        begin_ns = int(step * 1e12)
        for phase, seconds, work in list_known_spans(int(samples), SHARES[rank]):
            span_ns = round(seconds * 1e9)
            rows.append(
                (step, rank, Lane.MAIN, phase.code, 0, begin_ns, span_ns, NO_GROUP, NO_PEER, 0,
                 work, 0)
            )  # fmt: skip
            begin_ns += span_ns
    return SpanColumns(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


def run_virtual(folder: Path, runs: Path, *words: str) -> Result:
    command = ["run", str(folder), "--on", "virtual", "--runs", str(runs), "--no-report", "--json"]
    return CliRunner().invoke(main, [*command, *words])


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return the folder of a run of all clients whose trace is known."""
    found = run_virtual(write_federated(tmp_path / "clients", EVERYBODY), tmp_path / "runs")
    assert found.exit_code == 0, found.output
    folder = Path(json.loads(found.stdout)["folder"])
    run = load_run(folder)
    assert run.record is not None
    record = run.record.model_copy(update={"testbed": "local"})
    write_run(replace(run, record=record, spans=write_known_spans(run)), folder)
    return folder


def test_a_round_takes_what_it_took_in_the_recorded_run(tmp_path: Path, recorded: Path) -> None:
    output_dir = WorkerOutputDir(tmp_path / "workers")
    output_dir.folder.mkdir()
    scenario = load_scenario(tmp_path / "clients")
    simulation = plan_simulation(scenario, output_dir, RecordedTimes.read((recorded,), scenario))
    samples = dict(zip((run := load_run(recorded)).steps.rank, run.steps.samples, strict=True))
    expected = [
        EPOCHS * sum(map(step_s, list_local_steps(int(samples[rank]), BATCH))) / share
        + overhead_s(share)
        for rank, share in enumerate(SHARES)
    ]
    assert simulation.round_s == pytest.approx(expected, rel=1e-6)


def test_a_run_takes_them_by_an_option(tmp_path: Path, recorded: Path) -> None:
    found = run_virtual(tmp_path / "clients", tmp_path / "runs", "--from", str(recorded))
    assert found.exit_code == 0, found.output


def test_computed_times_are_no_measurement(tmp_path: Path) -> None:
    folder, runs = write_federated(tmp_path / "clients"), tmp_path / "runs"
    assert run_virtual(folder, runs).exit_code == 0
    found = run_virtual(folder, runs, "--from", "clients")
    assert found.exit_code == 2
    assert "was run --on virtual, so its step times are computed" in found.output


def test_elsewhere_steps_are_trained_in_their_own_time(tmp_path: Path) -> None:
    folder = write_federated(tmp_path / "clients")
    found = CliRunner().invoke(main, ["run", str(folder), "--from", "clients"])
    assert found.exit_code == 2
    assert "--from clients: valid only with --on virtual" in found.stderr
