"""Programs of Flower in the environment of an app, and environments that do not have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.errors import InputError
from laggard.flower.app_programs import AppPrograms, read_flower_version
from laggard.workloads.specification.flower_app import FlowerApp


def make_environment(folder: Path, script: str | None) -> FlowerApp:
    """An environment whose `flower-superlink` is a shell script, or which has none."""
    (folder / "bin").mkdir()
    (folder / "bin/python").write_text("")
    if script is not None:
        program = folder / "bin/flower-superlink"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    return FlowerApp(flower=str(folder), python=str(folder / "bin/python"))


def test_the_version_is_read(tmp_path: Path) -> None:
    app = make_environment(tmp_path, "echo Flower version: 1.42.3")
    assert read_flower_version(app) == "1.42"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "Flower is not installed beside"),
        ("echo Flower version: 1.41.9", "Flower 1.41 is too old"),
        ("echo hello", "does not run"),
        ("echo no module >&2; exit 1", "does not run: no module"),
    ],
)
def test_other_environments_are_refused_with_what_helps(
    script: str | None, reason: str, tmp_path: Path
) -> None:
    app = make_environment(tmp_path, script)
    with pytest.raises(InputError, match=reason) as refused:
        read_flower_version(app)
    assert f"{app.python} -m pip install 'flwr>=1.42'" in str(refused.value)


def test_a_missing_environment_is_refused(tmp_path: Path) -> None:
    app = FlowerApp(flower=str(tmp_path), python=str(tmp_path / "venv/bin/python"))
    with pytest.raises(InputError, match=f"python3 -m venv {tmp_path / 'venv'}`"):
        read_flower_version(app)


@pytest.mark.parametrize(
    ("server", "address"), [("10.77.0.1", "10.77.0.1:8000"), ("fd77::1", "[fd77::1]:8000")]
)
def test_programs_name_the_server(server: str, address: str, tmp_path: Path) -> None:
    programs = AppPrograms(make_environment(tmp_path, None), server)
    assert address in programs.start_supernode(2, 8)
    assert "partition-id=2 num-partitions=8" in programs.start_supernode(2, 8)
    assert f'address = "{address}"' in programs.format_configuration()
    assert programs.create_environment(tmp_path)["FLWR_TELEMETRY_ENABLED"] == "0"
