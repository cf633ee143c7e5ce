"""Lives of machines from a CSV, and the expected end that `laggard predict` prints from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.errors import LaggardError
from laggard.core.revocation.lifetimes import Life
from laggard.core.revocation.lifetimes_file import read_lifetimes
from tests.predict.scenario_folder import write_scenario


def _write(folder: Path, text: str | bytes) -> Path:
    path = folder / "lives.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_lives_are_read(tmp_path: Path) -> None:
    path = _write(tmp_path, "\ufeffhours, censored\r\n1.5,0\r\n24,true\r\n0.5,\r\n")
    assert read_lifetimes(path).lives == (Life(5400.0), Life(86400.0, True), Life(1800.0))
    assert read_lifetimes(_write(tmp_path, "seconds\n60\n")).lives == (Life(60.0),)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "hours\n",
        "hours,censored\n",
        "hours,seconds\n1,1\n",
        "days\n1\n",
        "hours,hours\n1,1\n",
        "hours,place\n1,x\n",
        "hours\n0\n",
        "hours\n-1\n",
        "hours\nnan\n",
        "hours\n1e400\n",
        "hours\nx\n",
        "hours,censored\n1,perhaps\n",
        "hours,censored\n1\n2,0,3\n",
        "hours,censored\n1,1\n",
        'hours\n"1\n',
        b"hours\n\xff\n",
        b"\x00\x01",
    ],
)
def test_other_files_are_refused_with_one_message(tmp_path: Path, content: str | bytes) -> None:
    path = _write(tmp_path, content)
    with pytest.raises(LaggardError) as caught:
        read_lifetimes(path)
    assert " — " in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaggardError):
        read_lifetimes(tmp_path / "nothing.csv")


@pytest.mark.long
def test_the_expected_end_is_printed(tmp_path: Path) -> None:
    scenario = str(
        write_scenario(
            tmp_path / "known",
            workload={
                "checkpoint_every": 2000,
                "stop": {"steps": 200_000},
                "objective": {"name": "makespan", "prices": {"edge": 0.5}},
            },
        )
    )
    lives = str(_write(tmp_path, "hours,censored\n5,0\n9,0\n24,1\n"))
    found = CliRunner().invoke(main, ["predict", scenario, "--lifetimes", lives, "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    (revocations,) = document["revocations"]
    makespan_s = document["forecasts"][0]["makespan_s"]
    assert makespan_s < revocations["best"]["finish_s"] <= revocations["planned"]["finish_s"]
    assert revocations["best"]["cost"] == pytest.approx(
        4 * 0.5 * revocations["best"]["finish_s"] / 3600
    )
    text = CliRunner().invoke(main, ["predict", scenario, "--lifetimes", lives])
    assert "which is best" in text.stdout


@pytest.mark.parametrize(
    ("workload", "options", "message"),
    [
        ({"stop": {"time": "10s"}}, [], "workload.stop.steps"),
        ({"strategy": "asynchronous"}, [], "workload.strategy"),
        ({}, ["--restart", "3 parsecs"], "--restart"),
        ({}, ["--checkpoint-time", "-1s"], "--checkpoint-time"),
    ],
)
def test_what_cannot_be_expected_is_refused(
    tmp_path: Path, workload: dict[str, object], options: list[str], message: str
) -> None:
    scenario = str(write_scenario(tmp_path / "known", workload=workload))
    lives = str(_write(tmp_path, "hours\n5\n"))
    found = CliRunner().invoke(main, ["predict", scenario, "--lifetimes", lives, *options])
    assert found.exit_code == 2
    assert message in found.stderr
