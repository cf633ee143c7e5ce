"""Predicted speeds and those of runs are on one figure, if the runs are comparable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.analysis.evaluate.synthetic.run_generator import generate_run
from laggard.analysis.tables.write_run import write_run
from laggard.cli.main import main
from laggard.predict.scaling.recorded_speeds import RecordedSpeed, read_recorded_speeds
from laggard.predict.scaling.scaling_curve import ScalingCurve, ScalingPoint
from laggard.predict.scaling.scaling_figure import draw_scaling
from laggard.run_folder.store import load_record
from laggard.scenario.load import load_scenario
from tests.analysis.traces import quiet
from tests.predict.scenario_folder import write_scenario


def write_recorded(folder: Path, *, edge: int = 4, **workload: object) -> RecordedSpeed:
    """Write the folder of a run of a scenario, and return its speed."""
    run = generate_run(quiet(edge, 12))
    write_run(run, folder)
    write_scenario(folder / "scenario", edge=edge, workload=dict(workload))
    outcome = load_record(folder).outcome
    assert outcome is not None
    return RecordedSpeed(edge, 64 // edge, outcome.samples_per_s)


def test_only_runs_of_the_same_training_are_compared(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path / "known"))
    same = write_recorded(tmp_path / "same")
    fewer = write_recorded(tmp_path / "fewer", edge=2)
    write_recorded(tmp_path / "model", model="cnn")
    write_recorded(tmp_path / "strategy", strategy="local_sgd")
    write_recorded(tmp_path / "batch", batch_size=256)
    folders = [tmp_path / each for each in ("same", "fewer", "model", "strategy", "batch")]
    assert read_recorded_speeds(folders, scenario, [16, 32]) == (same, fewer)
    assert read_recorded_speeds(folders, scenario, [16]) == (same,)


def test_the_figure_shows_predictions_runs_and_the_knee() -> None:
    points = tuple(ScalingPoint(n, 10.0 * n**0.8, 9.0 * n**0.8, 11.0 * n**0.8) for n in (1, 4, 64))
    curve = ScalingCurve("known", points, (RecordedSpeed(4, 16, 31.0),), 12.5)
    speed, efficiency = draw_scaling(curve).axes
    lines = {str(line.get_label()): line for line in speed.lines}
    assert list(lines["predicted"].get_ydata()) == [each.samples_per_s for each in points]
    assert list(lines["run"].get_ydata()) == [31.0]
    assert "knee: 12.5" in lines
    lines = {str(line.get_label()): line for line in efficiency.lines}
    assert list(lines["predicted"].get_ydata()) == pytest.approx([1, 4**-0.2, 64**-0.2])
    assert list(lines["run"].get_ydata()) == pytest.approx([31 / 40])


@pytest.mark.parametrize(
    ("command", "numbers"), [("predict", ["--workers=2..4"]), ("simulate", ["--scale=edge=8,64"])]
)
def test_both_commands_draw_it_and_name_the_serial_part(
    tmp_path: Path, command: str, numbers: list[str]
) -> None:
    folder, figure = write_scenario(tmp_path / "known"), tmp_path / "more.svg"
    arguments = [command, str(folder), *numbers, "--json", f"--figure={figure}"]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 0, found.output
    part = json.loads(found.stdout)["serial_part"]
    assert part["scaling"] == ("strong" if command == "predict" else "weak")
    assert 0 <= part["low"] <= part["mean"] <= part["high"] <= 1
    assert "<svg" in figure.read_text()
    refused = CliRunner().invoke(main, [*arguments[:-1], "--figure=more.doc"])
    assert refused.exit_code == 2
    assert ".svg" in refused.output
