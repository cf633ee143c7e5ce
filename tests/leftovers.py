"""What tests start and write, marked so that it can be found and ended.

Every process of a test session inherits an environment variable that names the session: a failed
test's processes are ended at once, those of a module at its end, and those of a session that was
killed when the next one starts.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

from laggard.layers_services.local.janitor import run_name
from laggard.network_emulation.compute.cgroups import sweep_cgroups

VARIABLE = "LAGGARD_TEST_SESSION"
PREFIX = "lt-"
"""Of a session's folder. It is short, since the path of a socket has at most 107 bytes."""
_OWNER_FILE = "session"
_SESSION = re.compile(r"(\d{1,10})-(\d{1,20})", re.ASCII)
_STARTTIME_FIELD = 19  # of those after the command's name
_UNOWNED_S = 3600.0
"""Age from which a folder without the name of its session is left over. A new one has it at once."""
ENDING_S = 15.0
"""How long processes may take that end by themselves: a janitor waits for its run's last one."""

exempt: set[int] = set()
"""Processes of this test process that belong to the whole session."""


@dataclass(frozen=True)
class MarkedProcess:
    """A process that a test session started."""

    pid: int
    started_ticks: int
    session: str
    command: str


def mark_session() -> str:
    """Name this test process in its environment, which everything that it starts inherits.

    An xdist worker is named after the session that started it.
    """
    session = os.environ.get(VARIABLE, "").partition("/")[0] or run_name()
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    os.environ[VARIABLE] = f"{session}/{worker}"
    return os.environ[VARIABLE]


def make_folder(session: str) -> Path:
    """A folder for all files of a session, which other users may enter."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o755)
    (folder / _OWNER_FILE).write_text(session)
    return folder


def marked_processes(prefix: str = "") -> Iterator[MarkedProcess]:
    """Processes whose session begins with a prefix, without this one, its ancestors and zombies."""
    ancestors = set(_ancestors())
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in ancestors:
            continue
        with contextlib.suppress(OSError):
            environment = (folder / "environ").read_bytes().split(b"\0")
            marks = [each for each in environment if each.startswith(f"{VARIABLE}=".encode())]
            session = marks[0].partition(b"=")[2].decode() if marks else ""
            if session and session.startswith(prefix):
                stat = (folder / "stat").read_text().rpartition(") ")[2].split()
                command = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                if stat[0] not in "ZX":
                    pid, started = int(folder.name), int(stat[_STARTTIME_FIELD])
                    yield MarkedProcess(pid, started, session, command[:200])


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def _tracker() -> set[int]:
    """Python's tracker of shared memory, which ends with its process and is needed until then."""
    pid = getattr(resource_tracker._resource_tracker, "_pid", None)
    return set() if pid is None else {pid}


def end_processes(started_from_ticks: int = 0) -> list[MarkedProcess]:
    """Kill what this test process has started since a moment, but for the session's own."""
    kept = exempt | _tracker()
    ended = [
        process
        for process in marked_processes(os.environ[VARIABLE])
        if process.started_ticks >= started_from_ticks and process.pid not in kept
    ]
    for process in ended:
        _kill(process.pid)
    deadline = time.monotonic() + ENDING_S
    while any(map(_is_running, ended)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return ended


def _is_running(process: MarkedProcess) -> bool:
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
        return stat[0] not in "ZX" and int(stat[_STARTTIME_FIELD]) == process.started_ticks
    return False


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def now_ticks() -> int:
    """This moment as the kernel writes processes' start times."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def sweep_dead_sessions() -> list[str]:
    """End and remove what sessions have left that were killed; returns what it was."""
    swept = []
    for process in list(marked_processes()):
        if not _is_alive(process.session.partition("/")[0]):
            _kill(process.pid)
            swept.append(f"process {process.pid}: {process.command}")
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
            swept.extend([] if folder.exists() else [f"folder {folder}"])
    return [*swept, *remove_stale_cgroups()]


def _is_abandoned(folder: Path) -> bool:
    """Return whether the session of a folder is dead, or was killed while it removed the folder."""
    owner = folder / _OWNER_FILE
    with contextlib.suppress(FileNotFoundError):
        return not _is_alive(owner.read_text())
    with contextlib.suppress(FileNotFoundError):  # another session may remove it just now
        return time.time() - folder.stat().st_mtime > _UNOWNED_S
    return False


def remove_stale_cgroups() -> list[str]:
    """Remove the cgroups of runs that are gone; returns what it was."""
    return [f"cgroup {folder}" for folder in sweep_cgroups()]


def _is_alive(session: str) -> bool:
    match = _SESSION.fullmatch(session)
    if match is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        return run_name(int(match[1])) == session
    return False


@dataclass(frozen=True)
class Surroundings:
    """What a session may not change of the machine."""

    mounts: frozenset[str]
    interfaces: frozenset[str]
    cgroups: frozenset[str]
    files: frozenset[str]

    @classmethod
    def look(cls, repository: Path) -> Surroundings:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        # Hidden folders are the caches of pytest and hypothesis.
        files = [each for each in repository.iterdir() if not each.name.startswith(".")]
        files += Path("/dev/shm").glob("laggard-*")
        files += Path(tempfile.gettempdir()).glob("laggard-*")
        groups = Path("/sys/fs/cgroup").rglob("laggard-*")
        return cls(
            frozenset(line.split()[4] for line in mounts),
            frozenset(path.name for path in Path("/sys/class/net").iterdir()),
            frozenset(map(str, groups)),
            frozenset(map(str, files)),
        )

    def changes(self, later: Surroundings) -> list[str]:
        """What is there later and was not before."""
        new = {
            "mount": later.mounts - self.mounts,
            "interface": later.interfaces - self.interfaces,
            "cgroup": later.cgroups - self.cgroups,
            "file": later.files - self.files,
        }
        return [
            f"{kind} {name}"
            for kind, names in new.items()
            for name in sorted(names)
            if not _has_living_owner(name)
        ]


def _has_living_owner(name: str) -> bool:
    """Whether a process of another program holds it: names of cgroups and drives carry the number
    of the process that made them."""
    number = re.search(r"laggard-(?:drive-)?(\d{1,10})", name)
    return number is not None and Path(f"/proc/{number[1]}").exists()


def find_leftovers(session: str, before: Surroundings, repository: Path) -> list[str]:
    """What a session leaves behind, once everything had time to end; processes are killed."""
    if _tracker():
        resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
    deadline = time.monotonic() + ENDING_S
    while True:
        processes = list(marked_processes(session))
        changes = before.changes(Surroundings.look(repository))
        if not (processes or changes) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for process in processes:
        _kill(process.pid)
    return [f"process {process.pid}: {process.command}" for process in processes] + changes
