"""Removal of a run's cgroup folders, which outlive namespaces, however the run ended.

The janitor is a process outside the sandbox. It waits for the end of a pipe whose other end is
held by every process of the run. If a janitor is killed, the next run removes its folders. Their
names have the process id and start time of their run, so dead runs are recognized. The janitor
only removes empty folders and kills no process.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from laggard.core import linux
from laggard.core.errors import DeploymentError
from laggard.layers_services.local.forked import end_with, fork_process

_PATIENCE_S = 10.0
_PAUSE_S = 0.02
_RUN_NAME = re.compile(r"(?:laggard-)?(\d{1,10})-(\d{1,20})", re.ASCII)
# Index of the field `starttime` in /proc/PID/stat, see proc(5).
_STARTTIME_FIELD = 21
_log = logging.getLogger(__name__)


def run_name(pid: int | None = None) -> str:
    """Return `<pid>-<starttime>` of a process, by default of this one.

    The name is unique on this machine until it reboots.

    Raises:
        ProcessLookupError: there is no such process
    """
    number = os.getpid() if pid is None else pid
    start = _start_time(number)
    if start is None:
        raise ProcessLookupError(number)
    return f"{number}-{start}"


def _start_time(pid: int) -> int | None:
    """Return the start time in clock ticks since boot; None if there is no such process.

    See proc_pid_stat(5).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return int(fields[_STARTTIME_FIELD - 2])


class Janitor:
    """Process that cleans up after the run; use it as a context manager."""

    def __init__(self, pipe: int, pid: int) -> None:
        self._pipe = pipe
        self._pid = pid

    @classmethod
    def start(cls) -> Self:
        """Fork the janitor; call this before the sandbox starts.

        Raises:
            DeploymentError: the calling process has several threads
        """
        read, write = os.pipe()
        pid = fork_process("starting the janitor")
        if pid == 0:
            os.close(write)
            end_with(lambda: _wait_and_remove(read))
        os.close(read)
        return cls(write, pid)

    def watch(self, folders: Iterable[Path]) -> None:
        """Register folders for removal; call this before they are created.

        Args:
            folders: folders to remove, with their subfolders, if they have no files and processes

        Raises:
            DeploymentError: the janitor was killed
        """
        line = json.dumps([str(folder) for folder in folders]) + "\n"
        data = line.encode()
        try:
            while data:
                data = data[os.write(self._pipe, data) :]
        except BrokenPipeError as error:
            raise DeploymentError(
                f"the janitor process {self._pid} was killed, so cgroups could not be removed;"
                " start the run again"
            ) from error

    def close(self) -> None:
        """Close the pipe and wait until the folders are removed.

        The wait ends early, with a warning, if other processes of the run still hold the pipe.
        """
        os.close(self._pipe)
        deadline = time.monotonic() + _PATIENCE_S + 1.0
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                _log.warning(
                    "the janitor (process %d) is still waiting for processes of the run to end",
                    self._pid,
                )
                return
            time.sleep(_PAUSE_S / 4)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait_and_remove(pipe: int) -> int:
    os.setsid()
    linux.set_process_name("laggard-janitor")
    # The janitor must outlive the run, so it ignores the signals that end the run.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with open(pipe, "rb") as told:
        lines = told.read().splitlines()
    folders = [Path(folder) for line in lines for folder in json.loads(line)]
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        left = [folder for folder in folders if not remove_tree(folder)]
        if not left:
            return 0
        if time.monotonic() > deadline:
            return 1
        time.sleep(_PAUSE_S)


def remove_tree(folder: Path) -> bool:
    """Remove a folder and its subfolders, deepest first, but no files; return whether it is gone.

    A cgroup's control files vanish with its folder. The kernel refuses to remove the folder of a
    cgroup that contains a process.
    """
    try:
        with os.scandir(folder) as entries:
            inner = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return True
    for each in inner:
        remove_tree(each)
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        _log.debug("%s cannot be removed yet: %s", folder, error)
        return False
    return True


def remove_stale_cgroups(parents: Iterable[Path]) -> tuple[Path, ...]:
    """Remove the cgroup folders of dead runs.

    Args:
        parents: folders that contain one folder per run, named by `run_name` with an optional
            prefix `laggard-`

    Returns:
        The removed folders.
    """
    removed = []
    for parent in parents:
        for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
            # A reused process id has another start time, so its folder is recognized as stale.
            match = _RUN_NAME.fullmatch(folder.name)
            if match and _start_time(int(match[1])) != int(match[2]) and remove_tree(folder):
                removed.append(folder)
    return tuple(removed)
