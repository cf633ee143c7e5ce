"""What is shipped: a wheel built from the sdist holds exactly the files of the tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = ("experiments", "layers_services", "network_emulation", "workloads", "analysis")
SHIPPED_SUFFIXES = {
    ".py",
    ".json",
    ".yaml",
    ".md",
    ".ipynb",
    ".html",
    ".css",
    ".js",
    ".csv",
    ".mplstyle",
}


def _tree() -> tuple[Path, ...]:
    """Files that git has or would take, relative to the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return tuple(
        Path(line)
        for line in listed
        if (REPOSITORY / line).exists() or (REPOSITORY / line).is_symlink()
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for path in _tree():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / path, source / path, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (built,) = out.glob("laggard-*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


@pytest.mark.long
def test_the_wheel_holds_the_tree(wheel: zipfile.ZipFile) -> None:
    foundation = {path.relative_to("src") for path in _tree() if path.is_relative_to("src/laggard")}
    rooms = {"laggard" / path for path in _tree() if path.parts[0] in ROOMS}
    expected = {
        str(path)
        for path in foundation | rooms
        if path.suffix in SHIPPED_SUFFIXES or path.name == "py.typed"
    }
    shipped = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert shipped == expected


def test_no_file_of_a_room_is_of_a_kind_that_is_not_shipped() -> None:
    odd = [
        str(path)
        for path in _tree()
        if path.parts[0] in ROOMS and path.suffix not in SHIPPED_SUFFIXES
    ]
    assert odd == []


@pytest.mark.long
def test_the_wheel_puts_nothing_beside_the_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top.partition("-")[0] for top in tops} == {"laggard"}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"laggard"}


@pytest.mark.long
def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    text = wheel.read(metadata).decode()
    assert "License-Expression: GPL-3.0-or-later" in text
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())
    (points,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert "laggard = laggard.__main__:main" in wheel.read(points).decode()


def test_the_rooms_are_links_into_the_tree() -> None:
    for room in ROOMS:
        link = REPOSITORY / "src/laggard" / room
        assert link.is_symlink()
        assert link.readlink() == Path("../..") / room
