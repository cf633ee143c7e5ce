"""`laggard knee`: speeds of few workers as a table, and those of more of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.cost_model.server_queue import ServerQueue
from laggard.core.errors import InputError
from laggard.predict.scaling.server_knee import parse_speeds

QUEUE = ServerQueue(think_s=0.09, service_s=0.02)


def write_speeds(folder: Path) -> Path:
    path = folder / "speeds.csv"
    rows = [f"{workers},{QUEUE.speed(workers)}" for workers in (1, 2, 3, 4)]
    path.write_text("\n".join(["workers,steps_per_s,note", *(f"{row},x" for row in rows)]))
    return path


def test_the_queue_behind_the_speeds_is_found(tmp_path: Path) -> None:
    path = str(write_speeds(tmp_path))
    arguments = ["knee", path, "--workers", "8,16", "--service", "20ms"]
    document = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert document["knee_workers"] == pytest.approx(QUEUE.knee, rel=0.1)
    assert document["predicted"]["16"] == pytest.approx(QUEUE.speed(16), rel=0.1)
    text = CliRunner().invoke(main, arguments).stdout
    assert "workers fill the server" in text
    assert text.splitlines()[-1].split()[0] == "16"


def test_lines_of_one_number_count_by_their_mean() -> None:
    assert parse_speeds(b"workers,steps_per_s\n2,10\n1,6\n2,12\n", "x") == {1: 6.0, 2: 11.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "columns are missing"),
        ("workers\n1", "must be among them"),
        ("workers,steps_per_s\n", "has no speeds"),
        ("workers,steps_per_s\n0,1", "x:2: '0' workers"),
        ("workers,steps_per_s\n1.5,1", "x:2: '1.5' workers"),
        ("workers,steps_per_s\n99999999999999999999,1", "workers must be 1 to"),
        ("workers,steps_per_s\n1,nan", "must be above 0"),
        ("workers,steps_per_s\n1,-3", "must be above 0"),
        ("workers,steps_per_s\n1,fast", "must be above 0"),
        ("workers,steps_per_s\n1", "has not the columns"),
    ],
)
def test_other_tables_are_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_speeds(text.encode(), "x")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options", [["--workers", "edge=4"], ["--workers", "x"], ["--service", "soon"]]
)
def test_other_options_are_refused(tmp_path: Path, options: list[str]) -> None:
    found = CliRunner().invoke(main, ["knee", str(write_speeds(tmp_path)), *options])
    assert found.exit_code == 2
