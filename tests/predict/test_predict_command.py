"""`laggard predict`, with steps that are really measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.cost_model.message_handling import MessageHandling
from laggard.predict.machine_speed import choose_sizes, measure_machine_speed
from laggard.scenario.load import load_scenario
from tests.predict.scenario_folder import write_scenario


def test_a_scenario_is_predicted_as_text_and_as_json(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path / "known")
    text = CliRunner().invoke(main, ["predict", str(folder)])
    assert text.exit_code == 0, text.output
    assert "limited by" in text.stdout
    found = CliRunner().invoke(main, ["predict", str(folder), "--workers", "2..4", "--json"])
    document = json.loads(found.stdout)
    assert [each["workers"] for each in document["forecasts"]] == [2, 3, 4]
    for each in document["forecasts"]:
        assert 0 < each["step_s_low"] <= each["step_s"] <= each["step_s_high"]
        assert each["makespan_s"] == pytest.approx(40 * each["step_s"])
    assert document["notes"] == []


def test_what_is_not_predicted_is_said(tmp_path: Path) -> None:
    folder = write_scenario(
        tmp_path / "known",
        heterogeneity={
            "dynamic": [
                {"at": "1s", "for": "1s", "src": "edge.*", "dst": "cloud.*", "delay": "9ms"}
            ]
        },
    )
    found = CliRunner().invoke(main, ["predict", str(folder)])
    assert "note: timed changes of delay_ms are not predicted" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "edge=0"], "1 to 512"),
        (["--samples-per-worker", "4"], "--workers"),
        (["--from", "nothing"], "nothing"),
        (["--set", "workload.strategy=adaptive"], "cannot be simulated"),
        (["--workers", "edge=65", "--set", "workload.batch_size=64"], "batch_size"),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, arguments: list[str], message: str) -> None:
    folder = write_scenario(tmp_path / "known")
    found = CliRunner().invoke(main, ["predict", str(folder), "--runs", str(tmp_path), *arguments])
    assert found.exit_code == 2
    assert message in found.stderr
    assert "Traceback" not in found.output


def test_a_scenario_without_training_is_refused(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path / "known")
    (folder / "workload.yaml").unlink()
    found = CliRunner().invoke(main, ["predict", str(folder)])
    assert found.exit_code == 2
    assert "nothing is trained" in found.stderr


def test_measured_steps_cost_more_for_more_samples(tmp_path: Path) -> None:
    workload = load_scenario(write_scenario(tmp_path)).workload
    speed = measure_machine_speed(workload, (8, 4096))
    assert speed.step(4096).usual_s > speed.step(8).usual_s
    assert speed.step(8).low_s <= speed.step(8).usual_s <= speed.step(8).high_s
    assert speed.parameter_bytes == 38_440
    assert (speed.sample_bytes, speed.step_accesses(5)) == (64, 1)
    handling = speed.handling
    assert isinstance(handling, MessageHandling)
    assert min(handling.packing_s_per_mb, handling.applying_s_per_mb, handling.ring_part_s) > 0


def test_few_sizes_span_all() -> None:
    assert choose_sizes([4, 2, 2]) == (2, 4)
    many = choose_sizes(range(1, 500))
    assert len(many) <= 6
    assert (many[0], many[-1]) == (1, 499)
