"""Removal of what outlives a run's processes, however the run ended: cgroups, queues of devices.

The janitor is a process outside the sandbox. It waits for the end of a pipe whose other end is
held by every process of the run. If a janitor is killed, the next run removes its folders. Their
names have the process id and start time of their run, so dead runs are recognized. The janitor
only removes empty folders.

On a node, the janitor also ends the agent that has started it, if the agent's connection is closed
and the agent does not end by itself, because it was stopped, say.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from laggard.core import linux
from laggard.core.errors import DeploymentError
from laggard.layers_services.local.forked import end_with, fork_process

_PATIENCE_S = 10.0
_PAUSE_S = 0.02
_COMMAND_TIMEOUT_S = 10.0
CALLER_PATIENCE_S = 15.0
"""Seconds from the end of a connection to the end of the process that it should have ended."""
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
    stat = _read_stat(pid)
    return None if stat is None else int(stat[_STARTTIME_FIELD - 2])


def _read_stat(pid: int) -> Sequence[str] | None:
    """Return the fields of /proc/PID/stat after the name; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat[stat.rindex(")") + 2 :].split()


def is_running(name: str) -> bool:
    """Return whether the process that `run_name` has named still runs."""
    pid, _, start = name.partition("-")
    stat = _read_stat(int(pid))
    # A zombie has ended, and only waits for its parent.
    return stat is not None and stat[_STARTTIME_FIELD - 2] == start and stat[0] != "Z"


class Janitor:
    """Process that cleans up after the run; use it as a context manager."""

    def __init__(self, pipe: int, pid: int) -> None:
        self._pipe = pipe
        self._pid = pid

    @classmethod
    def start(cls, connection: int | None = None) -> Self:
        """Fork the janitor; call this before the sandbox starts.

        Args:
            connection: descriptor whose other end belongs to whoever controls this process. If it
                is closed and this process has not ended `CALLER_PATIENCE_S` later, the janitor
                kills it.

        Raises:
            DeploymentError: the calling process has several threads
        """
        read, write = os.pipe()
        caller = None if connection is None else _Caller(connection, os.pidfd_open(os.getpid()))
        pid = fork_process("starting the janitor")
        if pid == 0:
            os.close(write)
            end_with(lambda: _wait_and_remove(read, caller))
        os.close(read)
        if caller is not None:
            os.close(caller.process)
        return cls(write, pid)

    @property
    def name(self) -> str:
        """Return the janitor's `run_name`; it runs as long as any process of its caller's run."""
        return run_name(self._pid)

    def watch(self, folders: Iterable[Path]) -> None:
        """Register folders for removal; call this before they are created.

        Args:
            folders: folders to remove, with their subfolders, if they have no files and processes

        Raises:
            DeploymentError: the janitor was killed
        """
        self._send({"folders": [str(folder) for folder in folders]})

    def undo(self, command: Sequence[str]) -> None:
        """Register a command that runs at the end; call this before what it undoes is done.

        Errors of the command are ignored: it fails if its effect was undone before.

        Raises:
            DeploymentError: the janitor was killed
        """
        self._send({"command": list(command)})

    def _send(self, duty: dict[str, list[str]]) -> None:
        data = f"{json.dumps(duty)}\n".encode()
        try:
            while data:
                data = data[os.write(self._pipe, data) :]
        except BrokenPipeError as error:
            raise DeploymentError(
                f"the janitor process {self._pid} was killed, so the changes of this run could not"
                " be undone at its end; start the run again"
            ) from error

    def close(self) -> None:
        """Close the pipe and wait until everything is undone and removed.

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


@dataclass(frozen=True)
class _Caller:
    """Process that started a janitor on a node.

    Attributes:
        connection: its descriptor to its controller.
        process: file descriptor of the process (pidfd).
    """

    connection: int
    process: int


def _wait_and_remove(pipe: int, caller: _Caller | None) -> int:
    os.setsid()
    linux.set_process_name("laggard-janitor")
    # The janitor must outlive the run, so it ignores the signals that end the run.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    if caller is not None:
        _keep_open(pipe, caller.connection, caller.process)
    duties = [json.loads(line) for line in _read_until_end(pipe, caller).splitlines()]
    for duty in duties:
        with suppress(OSError, subprocess.TimeoutExpired):
            if command := duty.get("command"):
                subprocess.run(
                    command, capture_output=True, check=False, timeout=_COMMAND_TIMEOUT_S
                )
    folders = [Path(folder) for duty in duties for folder in duty.get("folders", ())]
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        left = [folder for folder in folders if not remove_tree(folder)]
        if not left:
            return 0
        if time.monotonic() > deadline:
            return 1
        time.sleep(_PAUSE_S)


def _keep_open(*kept: int) -> None:
    """Close all other descriptors: an SSH session lasts as long as its output is open."""
    for descriptor in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if descriptor not in kept:
            with suppress(OSError):
                os.close(descriptor)
    null = os.open(os.devnull, os.O_RDWR)
    for number in {1, 2} - {null}:
        os.dup2(null, number)


def _read_until_end(pipe: int, caller: _Caller | None) -> bytes:
    """Return the content of a pipe when its last writer has closed it.

    A caller that stands still after the end of its connection is killed.
    """
    content = b""
    kill_at_s: float | None = None
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if caller is not None:
        poll.register(caller.connection, select.POLLRDHUP)
    while True:
        left_s = None if kill_at_s is None else max(0.0, kill_at_s - time.monotonic())
        ready = dict(poll.poll(None if left_s is None else left_s * 1e3))
        if caller is not None and caller.connection in ready:
            poll.unregister(caller.connection)
            kill_at_s = time.monotonic() + CALLER_PATIENCE_S
        if pipe in ready:
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                return content
            content += chunk
        if caller is not None and kill_at_s is not None and time.monotonic() >= kill_at_s:
            kill_at_s = None
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(caller.process, signal.SIGKILL)


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
