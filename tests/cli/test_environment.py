"""Bad paths, terminals and permissions end in a message, never in a traceback."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from laggard.analysis.evaluate.synthetic.run_generator import TraceSpec, generate_run
from laggard.analysis.tables.write_run import write_run
from laggard.cli.main import main

STRANGE_PATHS = {
    "long": "x" * 300,
    "deep": "a/" * 2500,
    "NUL": "a\0b",
    "unknown user": "~nosuch/runs",
    "surrogate": "\udcfc",
    "escape": "\x1b[2J",
    "empty": "",
    "device": "/dev/null",
    "process": "/proc/none/x",
}
COMMANDS: Mapping[str, Callable[[str], list[str]]] = {
    "check": lambda path: ["check", path],
    "plan": lambda path: ["plan", path],
    "report": lambda path: ["report", path],
    "compare": lambda path: ["compare", path],
    "analyze": lambda path: ["analyze", path],
    "export": lambda path: ["export", path, "--format", "csv"],
    "campaign": lambda path: ["campaign", path],
    "runs": lambda path: ["runs", "--runs", path],
    "run in": lambda path: ["report", "x", "--runs", path],
}


def laggard(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def assert_message(result: Result) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert all(c.isprintable() or c == "\n" for c in result.output)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("path", STRANGE_PATHS)
def test_strange_paths(
    command: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = laggard(*COMMANDS[command](STRANGE_PATHS[path]))
    assert_message(result)
    # A missing folder of runs is an empty one.
    assert result.exit_code == 2 or command == "runs", result.output
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    return write_run(generate_run(TraceSpec(steps=12)), root / "generated" / "generated-0")


@pytest.mark.parametrize("path", [each for each in STRANGE_PATHS if each != "empty"])
def test_strange_places_for_results(
    path: str, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may be strange; then the file has it."""
    monkeypatch.chdir(tmp_path)
    before = Path("/dev/null").stat()
    result = laggard("export", run_folder, "--format", "csv", "--out", STRANGE_PATHS[path])
    assert_message(result)
    assert result.exit_code == (0 if path in {"unknown user", "surrogate", "escape"} else 2)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert os.path.samestat(before, Path("/dev/null").stat())


def test_a_file_in_place_of_the_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("x")
    (tmp_path / "campaign.yaml").write_text("scenario: small\n")
    for arguments in (("runs",), ("report", "x"), ("campaign", tmp_path / "campaign.yaml")):
        result = laggard(*arguments, "--runs", tmp_path / "runs")
        assert_message(result)
        assert str(tmp_path / "runs") in result.output or arguments == ("runs",)


def start(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, **streams: int
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "laggard.cli.main", *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(
        command, check=False, env={**os.environ, **(environment or {})}, **streams
    )  # type: ignore[call-overload,no-any-return]


ENVIRONMENTS = {
    "C": {"LC_ALL": "C"},
    "ASCII": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "no TMPDIR": {"TMPDIR": "/proc/none"},
    "no HOME": {"HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none"},
}


@pytest.mark.long
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(name: str, run_folder: Path, tmp_path: Path) -> None:
    """With an umlaut, and with a byte that is not UTF-8, in the folder's name."""
    for folder in ("ü", "\udcfc"):
        copy = write_run(generate_run(TraceSpec(steps=12)), tmp_path / folder)
        for command in (("report", copy), ("export", copy, "--format", "csv"), ("check", copy)):
            done = start(*command, environment=ENVIRONMENTS[name])
            assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
            assert done.returncode == (2 if command[0] == "check" else 0), done.stderr
