"""`laggard place`: a topology in, the devices with the fastest ring out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from tests.jobs.test_topology_file import NVIDIA

CSV = "a,b,c,d\n0,50,25,0\n40,0,25,0\n25,25,0,0\n0,0,0,0\n"


@pytest.fixture
def nvidia(tmp_path: Path) -> Path:
    path = tmp_path / "topology.txt"
    path.write_text(NVIDIA)
    return path


def test_every_number_of_devices_has_its_ring(nvidia: Path) -> None:
    found = CliRunner().invoke(main, ["place", str(nvidia), "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert {each["size"]: each["slowest_gb_per_s"] for each in document["rings"]} == {
        2: 50.0,
        **dict.fromkeys(range(3, 8), 25.0),
        8: 50.0,
    }
    assert all(len({*each["ring"]}) == each["size"] for each in document["rings"])
    assert "25 GB/s are assumed for an NVLink" in document["notes"]


def test_only_free_devices_are_used(nvidia: Path) -> None:
    found = CliRunner().invoke(
        main,
        ["place", str(nvidia), "--devices=2", *(f"--free=GPU{each}" for each in (0, 5, 7))],
    )
    assert found.exit_code == 0, found.output
    row = next(line for line in found.stdout.splitlines() if line.startswith("  2"))
    assert row.split() == ["2", "25", "GB/s", "GPU5", "GPU7"]


def test_what_is_not_connected_or_uneven_is_said(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text(CSV)
    found = CliRunner().invoke(main, ["place", str(path)])
    assert found.exit_code == 0, found.output
    assert "40 GB/s" in found.stdout
    assert "the links connect no ring of so many devices" in found.stdout
    assert "the rates of a to b differ by direction, and the slower one counts" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices=9"], "9 devices, of which 8 are free"),
        (["--free=GPU0", "--free=GPU1", "--devices=3"], "3 devices, of which 2 are free"),
        (["--free=GPU8"], "GPU8: is no device of the topology — its devices are GPU0"),
    ],
)
def test_bad_arguments_are_one_message(nvidia: Path, arguments: list[str], message: str) -> None:
    found = CliRunner().invoke(main, ["place", str(nvidia), *arguments])
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert "Traceback" not in found.output
