"""`laggard stalls`: whole measurements of a scenario with one known stall."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from tests.command_line import Laggard, needs_tun
from tests.predict.scenario_folder import write_scenario

SLOW_DRIVE = {
    "deterministic": [
        {"hosts": "all", "cpu": "20%"},
        {"hosts": "edge.*", "read_latency": "400ms"},
    ]
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "1"], "--steps"),
        (["--set", "workload.model=no_such"], "no such model"),
        (["--set", "workload.batch_size=1"], "batch_size"),
        (["--repeats", "0"], "--repeats"),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, arguments: list[str], message: str) -> None:
    folder = write_scenario(tmp_path / "known")
    found = CliRunner().invoke(main, ["stalls", str(folder), "--runs", str(tmp_path), *arguments])
    assert found.exit_code == 2
    assert message in found.stderr
    assert "Traceback" not in found.output


def test_a_scenario_without_a_training_is_refused(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path / "known")
    (folder / "workload.yaml").unlink()
    found = CliRunner().invoke(main, ["stalls", str(folder), "--runs", str(tmp_path / "runs")])
    assert found.exit_code == 2
    assert "nothing is trained" in found.stderr
    assert not (tmp_path / "runs").exists()


@needs_tun
@pytest.mark.long
def test_a_slow_drive_is_the_largest_stall(laggard: Laggard, tmp_path: Path) -> None:
    folder = write_scenario(
        tmp_path / "known",
        edge=2,
        rate="100mbit",
        delay="1ms",
        heterogeneity=SLOW_DRIVE,
        workload={"placement": {"workers": ["cloud.*", "edge.*"]}, "batch_size": 48},
    )
    document = measure(laggard, folder)
    edge, cloud = document["tiers"]["edge"], document["tiers"]["cloud"]
    # A drive never answers before its latency has passed.
    assert edge["fetch_s"]["mean"] * document["samples_per_worker"] >= 0.38
    assert max(edge["shares"], key=lambda kind: edge["shares"][kind]) == "fetch"
    assert cloud["fetch_s"]["mean"] < edge["fetch_s"]["mean"] / 4
    assert cloud["interconnect_s"]["mean"] == 0.0
    assert document["runs"] == 5
    runs = [path for path in laggard.runs.glob("known/2*") if path.is_dir()]
    assert len(runs) >= 5
    # What has been measured is not measured again, unless a busy machine spoiled it.
    statuses = [json.loads((run / "run.json").read_text())["status"] for run in runs]
    again = measure(laggard, folder)
    assert len(list(laggard.runs.glob("known/2*"))) <= len(runs) + 2 * statuses.count("unfaithful")
    if statuses == ["done"] * 5:
        assert again == document


def measure(laggard: Laggard, folder: Path) -> dict[str, Any]:
    command = laggard.command("stalls", str(folder), "--steps", "6", "--fidelity", "record")
    ended = subprocess.run(
        [*command, "--json", "--runs", str(laggard.runs)],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    document: dict[str, Any] = json.loads(ended.stdout)
    return document
