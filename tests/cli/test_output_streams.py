"""Standard output and error that cannot be written to: a broken pipe, a full disk, a closed
descriptor. No run fails and no traceback appears; a command that only prints says so."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from laggard.analysis.evaluate.synthetic.run_generator import TraceSpec, generate_run
from laggard.analysis.tables.write_run import write_run
from tests.command_line import SMALL, UNFAITHFUL, needs_tun
from tests.faults import Fault, holds

KINDS = ("closed pipe", "/dev/full", "closed descriptor")
LOST = {
    "closed pipe": (128 + signal.SIGPIPE, b""),
    "/dev/full": (1, b"error: standard output: No space left on device"),
    "closed descriptor": (1, b"error: standard output: Bad file descriptor"),
}
"""Exit status of a command that only prints, and the beginning of its only line."""


@contextmanager
def broken(kind: str) -> Iterator[int]:
    if kind == "closed pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open("/dev/full", os.O_WRONLY)
    try:
        yield writing
    finally:
        os.close(writing)


def start(
    arguments: Sequence[str], kind: str, *streams: str, folder: Path
) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose streams are broken in this way."""
    command = [sys.executable, "-m", "laggard.cli.main", *arguments]
    if kind == "closed descriptor":
        closed = " ".join({"stdout": ">&-", "stderr": "2>&-"}[stream] for stream in streams)
        command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command]
    with broken(kind) as descriptor:
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if kind != "closed descriptor":
            given |= dict.fromkeys(streams, descriptor)
        return subprocess.run(command, check=False, cwd=folder, **given)  # type: ignore[call-overload,no-any-return]


def assert_clean(done: subprocess.CompletedProcess[bytes]) -> None:
    for sign in (b"Traceback", b"Exception ignored", b"Aborted"):
        assert sign not in (done.stderr or b""), done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, a campaign without runs, and a run."""
    root = tmp_path_factory.mktemp("streams")
    (root / "small").mkdir()
    for name, text in SMALL.items():
        (root / "small" / name).write_text(text)
    write_run(generate_run(TraceSpec(steps=12)), root / "runs" / "generated" / "generated-0")
    return root


PRINTING: Mapping[str, tuple[str, ...]] = {
    "help": ("--help",),
    "help of a command": ("run", "--help"),
    "version": ("--version",),
    "check": ("check", "small"),
    "check, JSON": ("check", "small", "--json"),
    "plan": ("plan", "small"),
    "runs": ("runs",),
    "runs, JSON": ("runs", "--json"),
    "compare": ("compare", "generated-0"),
}


def list_cases(names: Iterable[str], short: Sequence[str]) -> list[object]:
    """Return names with kinds: some commands with every kind, the others, later, with one of them."""
    cases: list[object] = [(name, kind) for name in short for kind in KINDS]
    others = [name for name in names if name not in short]
    return cases + [
        pytest.param(name, KINDS[number % len(KINDS)], marks=pytest.mark.long)
        for number, name in enumerate(others)
    ]


@holds(Fault.OUTPUT_LOST)
@pytest.mark.parametrize(("name", "kind"), list_cases(PRINTING, ("help", "check")))
def test_commands_that_only_print(name: str, kind: str, folder: Path) -> None:
    done = start(PRINTING[name], kind, "stdout", folder=folder)
    assert_clean(done)
    status, line = LOST[kind]
    lines = [each for each in done.stderr.splitlines() if not each.startswith(b"warning: ")]
    assert done.returncode == status, done.stderr
    assert len(lines) == (1 if line else 0), done.stderr
    assert b"".join(lines).startswith(line)
    done = start(PRINTING[name], kind, "stderr", folder=folder)
    assert (done.returncode, bool(done.stdout)) == (0, True)


WORKING: Mapping[str, tuple[str, ...]] = {
    "init": ("init", "new"),
    "destroy": ("destroy",),
    "report": ("report", "generated-0"),
    "analyze": ("analyze", "runs/generated/generated-0", "--json"),
    "export": ("export", "generated-0", "--format", "csv"),
    "evaluate": ("evaluate", "--cases", "1"),
}


@holds(Fault.OUTPUT_LOST)
@pytest.mark.parametrize(("name", "kind"), list_cases(WORKING, ("init", "destroy")))
def test_commands_with_other_results(name: str, kind: str, folder: Path, tmp_path: Path) -> None:
    for stream in ("stdout", "stderr"):
        place = folder
        if name == "init":
            place = tmp_path / stream
            place.mkdir()
        done = start(WORKING[name], kind, stream, folder=place)
        assert_clean(done)
        assert done.returncode == 0, done.stderr
        if name == "init":
            assert (place / "new" / "workload.yaml").is_file()


FAILING: Mapping[str, tuple[str, ...]] = {
    "check": ("check", "none"),
    "check, JSON": ("check", "none", "--json"),
    "run": ("run", "none"),
    "run, JSON": ("run", "none", "--json"),
    "emulate": ("emulate", "none"),
    "ssh": ("ssh", "none"),
    "links": ("links",),
    "campaign": ("campaign", "none"),
    "no command": ("no-such-command",),
    "no option": ("run", "--no-such-option"),
    "verbose": ("-v", "check", "none"),
}


@pytest.mark.parametrize(("name", "kind"), list_cases(FAILING, ("check, JSON",)))
def test_errors_keep_their_status(name: str, kind: str, folder: Path) -> None:
    for streams in (("stdout",), ("stdout", "stderr")):
        done = start(FAILING[name], kind, *streams, folder=folder)
        assert_clean(done)
        assert done.returncode == 2, done.stderr


_RUN = ("run", "small", "--fidelity", "record", "--set", "workload.stop={steps: 12}")
REAL: Mapping[str, tuple[str, ...]] = {
    "closed pipe": _RUN,
    "/dev/full": ("emulate", "small", "--fidelity", "record", "--for", "1s"),
    "closed descriptor": (*_RUN, "--json"),
}


@holds(Fault.OUTPUT_LOST)
@needs_tun
@pytest.mark.long
@pytest.mark.parametrize("kind", REAL)
def test_real_runs(kind: str, folder: Path, tmp_path: Path) -> None:
    arguments = (*REAL[kind], "--runs", str(tmp_path / "runs"))
    done = start(arguments, kind, "stdout", "stderr", folder=folder)
    assert done.returncode in {0, UNFAITHFUL}
    (record,) = (tmp_path / "runs").glob("*/2*/run.json")
    assert '"status": "done"' in record.read_text() or '"unfaithful"' in record.read_text()


_MANY_LINES = """
import sys
from laggard.core.text.standard_streams import find_lost_output, protect_standard_streams
protect_standard_streams()
protect_standard_streams()
for i in range(20_000):
    print(f"{i:06d} \\u00fc")
sys.stdout.flush()
print(find_lost_output(), file=sys.stderr)
"""


def test_a_pipe_that_does_not_block_loses_nothing() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with subprocess.Popen(
        [sys.executable, "-c", _MANY_LINES],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ) as process:
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            lines = file.read().splitlines()
        assert process.stderr is not None
        assert process.stderr.read() == b"None\n"
    assert lines == [f"{i:06d} \\xfc".encode() for i in range(20_000)]


_OPENED = """
import os, sys
from laggard.core.text.standard_streams import close_absent_descriptors, protect_standard_streams
protect_standard_streams()
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
print("lost")
print("lost", file=sys.stderr)
os.system("echo lost; echo lost >&2")
assert descriptor > 2 and sys.stdin.read() == ""
close_absent_descriptors()
for number in range(3):
    try:
        os.fstat(number)
    except OSError:
        os.write(descriptor, b"closed ")
"""


def test_a_file_never_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    file = tmp_path / "file"
    command = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", _OPENED]
    assert subprocess.run([*command, file], check=False).returncode == 0
    assert file.read_text() == "closed closed closed "


def test_a_terminal_that_is_gone(folder: Path) -> None:
    # The child must ignore the signal before its terminal is closed, and go on only afterwards.
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    gone, tell = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        os.close(tell)
        os.chdir(folder)
        os.read(gone, 1)
        os.execv(sys.executable, [sys.executable, "-m", "laggard.cli.main", "runs"])
    signal.signal(signal.SIGHUP, usual)
    os.close(terminal)
    os.close(gone)
    os.close(tell)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
