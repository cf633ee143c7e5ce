"""Bad paths, terminals and permissions end in a message, never in a traceback."""

from __future__ import annotations

import os
import shutil
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
from tests.command_line import SMALL
from tests.one_short import one_short
from tests.users import ordinary_user

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
    "run": lambda path: ["run", path],
    "run, override": lambda path: ["run", path, "--set", f"workload.seed={path}"],
    "emulate": lambda path: ["emulate", path],
    "verify": lambda path: ["verify", path, "--rounds", "1"],
    "ssh": lambda path: ["ssh", "--run", path, "edge.*", "true"],
    "ssh in": lambda path: ["ssh", "--runs", path, "edge.*", "true"],
    "links": lambda path: ["links", path],
    "destroy": lambda path: ["destroy", path],
    "plan on machines": lambda path: ["plan", "none", "--on", "ssh", "--hosts", path],
    "analyze to": lambda path: ["analyze", "none", "--out", path],
    "compare several": lambda path: ["compare", path, path],
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


WITH_RUNS: Mapping[str, tuple[str, ...]] = {
    "runs": ("runs",),
    "report": ("report", "x"),
    "export": ("export", "x", "--format", "csv"),
    "compare": ("compare", "x"),
    "analyze": ("analyze", "trace"),
    "ssh": ("ssh", "edge.*", "true"),
    "links": ("links",),
    "destroy": ("destroy",),
    "campaign": ("campaign", "campaign.yaml"),
    "run": ("run", "small"),
    "emulate": ("emulate", "small"),
    "verify": ("verify", "small"),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a scenario, a campaign and a trace."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    for name, text in SMALL.items():
        (tmp_path / "small" / name).write_text(text)
    (tmp_path / "campaign.yaml").write_text("scenario: small\n")
    write_run(generate_run(TraceSpec(steps=12)), tmp_path / "trace")
    return tmp_path


@pytest.mark.parametrize("command", one_short(sorted(WITH_RUNS, key="run".__ne__)))
def test_a_file_in_place_of_the_runs(command: str, place: Path) -> None:
    (place / "runs").write_text("x")
    name, *arguments = WITH_RUNS[command]
    done = start(name, "--runs", place / "runs", *arguments)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert (place / "runs").read_text() == "x"
    # A results folder of its own is not needed for a run folder.
    if command not in {"runs", "analyze", "destroy"}:
        assert done.returncode == 2, done.stderr
        assert str(place / "runs").encode() in done.stderr
        assert b" \xe2\x80\x94 " in done.stderr


AS_NOBODY = """
import os, sys
from laggard.cli.main import main
os.chdir(sys.argv.pop(1))
sys.argv[0] = "laggard"
main()
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", [0o755, 0o700])
@pytest.mark.parametrize("command", [name for name in WITH_RUNS if name != "verify"])
def test_folders_of_root(command: str, mode: int, open_folder: Path) -> None:
    """An ordinary user in a folder that root owns, and that only root may list."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to own folders")
    work, runs = open_folder / "work", open_folder / "roots"
    for folder in (work, work / "small", runs):
        folder.mkdir()
    for name, text in SMALL.items():
        (work / "small" / name).write_text(text)
    (work / "campaign.yaml").write_text("scenario: small\n")
    write_run(generate_run(TraceSpec(steps=12)), work / "trace")
    write_run(generate_run(TraceSpec(steps=12)), runs / "generated" / "x-0")
    runs.chmod(mode)
    user = ordinary_user(open_folder)
    try:
        name, *arguments = WITH_RUNS[command]
        done = user.run(AS_NOBODY, str(work), name, "--runs", str(runs), *arguments)
    finally:
        user.clean_up()
    assert "Traceback" not in done.stderr, done.stderr
    allowed = {"runs", "destroy", *(("compare",) if mode == 0o755 else ())}
    assert done.returncode in ({0, 2} if command in allowed else {1, 2}), done.stderr
    signs = (" — ", "to fix this", "Invalid value for '--runs'")
    assert done.returncode == 0 or any(sign in done.stderr for sign in signs)


@pytest.mark.parametrize("command", one_short(["check", "report", "init", "run", "ssh"]))
@pytest.mark.parametrize("name", ["ü", "\udcfc"])
def test_bytes_in_arguments(command: str, name: str, tmp_path: Path) -> None:
    """A real process gets bytes, in any locale; a missing path is one message."""
    for environment in ENVIRONMENTS["UTF-8"], ENVIRONMENTS["ASCII"]:
        path = os.fsencode(tmp_path / name / "none")
        arguments = (command, path, "true") if command == "ssh" else (command, path)
        done = start(*arguments, environment=environment)
        assert b"Traceback" not in done.stderr, done.stderr
        assert done.returncode == (0 if command == "init" else 2), done.stderr
        shutil.rmtree(tmp_path / name, ignore_errors=True)


def start(
    *arguments: str | bytes | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "laggard.cli.main", *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, env={**os.environ, **(environment or {})}
    )


ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    "UTF-8": {"LC_ALL": "C.UTF-8"},
    "C": {"LC_ALL": "C"},
    "ASCII": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "no TMPDIR": {"TMPDIR": "/proc/none"},
    "no HOME": {"HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none"},
}


@pytest.mark.long
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(name: str, run_folder: Path, tmp_path: Path) -> None:
    """With an umlaut, and with a byte that is not UTF-8, in the folder's name."""
    # A report has the same names in it in all environments, and takes seconds to draw.
    reads = "report" if name == "ASCII" else "compare"
    for folder in ("ü", "\udcfc"):
        copy = write_run(generate_run(TraceSpec(steps=12)), tmp_path / folder)
        for command in ((reads, copy), ("export", copy, "--format", "csv"), ("check", copy)):
            done = start(*command, environment=ENVIRONMENTS[name])
            assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
            assert done.returncode == (2 if command[0] == "check" else 0), done.stderr
