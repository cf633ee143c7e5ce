"""Share of a core from one step of a device, whose time on this machine is known or measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from laggard.cli.main import main
from laggard.predict.calibrated_share import CalibratedShare
from tests.predict.scenario_folder import write_scenario


def calibrate(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["calibrate", str(folder), *words])


def test_the_share_is_the_ratio_of_the_times() -> None:
    found = CalibratedShare(32, device_s=0.12, core_s=0.009)
    assert found.share == pytest.approx(0.075)
    text = found.format()
    assert "A step of 32 samples takes 9 ms on a whole core" in text
    assert text.splitlines()[-1] == '  - {hosts: "edge.*", cpu: 7.5%}'


def test_a_slow_device_has_a_small_share_of_this_machine(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path)
    found = calibrate(folder, "--step", "1h", "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["device_s"] == 3600
    assert document["samples"] == 16, "64 samples of four workers"
    assert document["share"] == pytest.approx(document["core_s"] / 3600)
    assert 0 < document["core_s"] < 60
    many = json.loads(calibrate(folder, "--step", "1h", "--samples", "640", "--json").stdout)
    assert many["samples"] == 640


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("0.001ms", "which is the fastest host that it emulates"),
        ("0s", "no step takes no time"),
        ("fast", "--step fast: a duration must be"),
    ],
)
def test_a_time_that_no_share_gives_is_refused(tmp_path: Path, step: str, message: str) -> None:
    found = calibrate(write_scenario(tmp_path), "--step", step)
    assert found.exit_code == 2
    assert message in found.stderr


def test_a_scenario_without_a_workload_has_no_step(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path)
    (folder / "workload.yaml").unlink()
    found = calibrate(folder, "--step", "1s")
    assert found.exit_code == 2
    assert "give a scenario whose workload.yaml" in found.stderr
