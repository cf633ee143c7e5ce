"""Execution of a function inside namespaces that the kernel removes as a whole.

    caller ── launcher ── init (pid 1 of a new PID namespace) ── the function

The launcher exists because the caller must keep its own namespaces and an ordinary user cannot
undo `unshare(CLONE_NEWPID)`. If any of these processes is killed, the others end too. The launcher
dies with the caller, and init with the launcher (PR_SET_PDEATHSIG; init also watches both through
descriptors). Init ends with the function. When init ends, the kernel kills everything in its PID
namespace, and the last process closes the mount and network namespaces.

All processes but the caller are in a process group of their own, so a Ctrl-C reaches the caller
only. The caller forwards SIGINT, SIGTERM and SIGHUP to the function, exactly once each, also those
that arrive while the sandbox is set up. After the first one the function has some time to end. A
second one ends the sandbox at once (`signalled_wait.py`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

from laggard.core import linux
from laggard.core.process.termination_signals import TERMINATION_SIGNALS
from laggard.layers_services.local import diagnosis, network_devices
from laggard.layers_services.local.forked import end_with, fork_process
from laggard.layers_services.local.signalled_wait import SignalledWait

_HOME = Path("/run/home")
# These folders are mounted anew in the sandbox.
_PRIVATE_PATHS = ("/proc", "/sys", "/run", "/dev/shm")  # noqa: S108
_OWN_FOLDERS = tuple(Path(os.path.realpath(name)) for name in _PRIVATE_PATHS)
_INIT_TIMEOUT_S = 1.0
Result = TypeVar("Result")
_Handler = Callable[[int, FrameType | None], object] | int | None
_log = logging.getLogger(__name__)


class _SetUpError(Exception):
    def __init__(self, step: str, number: int) -> None:
        self.step = step
        self.number = number
        super().__init__(step)


@dataclass(frozen=True)
class _Pipes:
    """Ends of the two pipes between caller and init.

    `life` carries signal numbers inward, and its end means that the caller died. `news` carries
    the reason of a failed setup outward, and its end without a message means success.
    """

    life_read: int
    life_write: int
    news_read: int
    news_write: int

    @classmethod
    def make(cls) -> _Pipes:
        return cls(*os.pipe(), *os.pipe())


def is_hidden(path: Path) -> bool:
    """Return whether the sandbox replaces this folder by its own; files put there are lost."""
    resolved = path.resolve()
    return any(resolved.is_relative_to(own) for own in _OWN_FOLDERS)


def run_in_sandbox(function: Callable[[], int], ending_s: float = math.inf) -> int:
    """Run `function` in a sandbox and return its exit status.

    The function runs in a fork of this process and sees all its objects and open descriptors.
    Unless this process is privileged, the function is root of a new user namespace. It has its own
    PID, mount, network, UTS and IPC namespaces, with their own `/proc`, `/sys`, `/dev/shm` and an
    empty writable `/run` (with `/run/netns`). `lo` is up, and HOME and the temporary folder are
    writable. The new `/sys` hides `/sys/fs/cgroup`; descriptors opened before stay usable.

    Args:
        function: function that returns an exit status, 0 to 255; an exception that leaves it is
            printed and gives status 1
        ending_s: seconds after a signal in which the function must end; it is killed afterwards

    Returns:
        The function's status; 128 + the signal that killed it or the sandbox; 128 + the user's
        first signal if it was killed because it did not end in time.

    Raises:
        KeyboardInterrupt: the user sent a second signal, so everything was killed at once
        DeploymentError: this process has several threads, or cannot fork
        PrerequisiteError: the kernel refuses a step of the setup; the error carries the command
            that permits it
    """
    pipes = _Pipes.make()
    sandbox = _Sandbox(pipes)
    try:
        with SignalledWait(sandbox.interrupt, sandbox.kill, sandbox.suspend, ending_s) as wait:
            caller = os.getpid()
            sandbox.launcher = fork_process("entering a sandbox")
            if sandbox.launcher == 0:
                end_with(lambda: _run_launcher(function, pipes, caller, wait.child_mask))
            with suppress(OSError):
                # The launcher does this too; whoever is first, the group exists from here on.
                os.setpgid(sandbox.launcher, sandbox.launcher)
            os.close(pipes.life_read)
            os.close(pipes.news_write)
            status = wait.wait(sandbox.launcher)
        _raise_reported_failure(pipes.news_read)
        if wait.is_second:
            raise KeyboardInterrupt(wait.first)
        if wait.killed_s is not None and wait.first is not None:
            return 128 + wait.first
        return _shell_status(status)
    finally:
        os.close(pipes.life_write)
        os.close(pipes.news_read)


@dataclass
class _Sandbox:
    """Ends of a sandbox that its caller holds."""

    pipes: _Pipes
    launcher: int = 0
    killed_s: float | None = None

    def interrupt(self, number: signal.Signals) -> None:
        """Forward a signal to the function."""
        _send_signal_number(self.pipes.life_write, number)

    def kill(self) -> None:
        """Kill the function; init then ends after everything in its PID namespace."""
        if self.killed_s is None:
            self.killed_s = time.monotonic()
            _send_signal_number(self.pipes.life_write, signal.SIGKILL)
        elif time.monotonic() - self.killed_s > _INIT_TIMEOUT_S:
            # Init is stopped or not there yet; it dies with the launcher.
            os.kill(self.launcher, signal.SIGKILL)

    def suspend(self, stop: bool) -> None:
        """Stop or continue all processes."""
        os.killpg(self.launcher, signal.SIGSTOP if stop else signal.SIGCONT)


def _send_signal_number(descriptor: int, number: int) -> None:
    try:
        os.write(descriptor, bytes([number]))
    except BrokenPipeError:
        _log.debug("signal %d arrived after the end of the sandbox", number)


def _raise_reported_failure(descriptor: int) -> None:
    news = b"".join(iter(lambda: os.read(descriptor, 4096), b""))
    if news:
        failure = json.loads(news)
        raise diagnosis.explain_refusal(
            failure["step"], failure["errno"], diagnosis.read_settings()
        )


def _shell_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _run_launcher(function: Callable[[], int], pipes: _Pipes, caller: int, mask: set[int]) -> int:
    """Enter the user and PID namespaces, fork init, and return its status."""
    os.close(pipes.life_write)
    os.close(pipes.news_read)
    os.setpgid(0, 0)
    # From a process group in the background, output to a terminal may be refused otherwise.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        _enter_user_and_pid_namespaces()
        linux.die_with_parent(caller)
        launcher = _run_step("descriptor of a process", lambda: os.pidfd_open(os.getpid()))
        init = _run_step("first process of the PID namespace", os.fork)
    except _SetUpError as error:
        return _report_failure(pipes.news_write, error)
    if init == 0:
        end_with(lambda: _run_init(function, pipes, launcher, mask))
    # While these ends are open, the caller would keep waiting for the end of `news`.
    os.close(pipes.news_write)
    os.close(pipes.life_read)
    _, status = os.waitpid(init, 0)
    return _shell_status(status)


def _report_failure(descriptor: int, error: _SetUpError) -> int:
    os.write(descriptor, json.dumps({"step": error.step, "errno": error.number}).encode())
    return 1


def _run_step(name: str, action: Callable[[], Result]) -> Result:
    try:
        return action()
    except OSError as error:
        raise _SetUpError(name, error.errno or 0) from error


def _is_privileged() -> bool:
    needed = 1 << linux.CAP_SYS_ADMIN | 1 << linux.CAP_NET_ADMIN
    return os.geteuid() == 0 and linux.effective_capabilities() & needed == needed


def _enter_user_and_pid_namespaces() -> None:
    if not _is_privileged():
        uid, gid = os.geteuid(), os.getegid()
        _run_step("new user namespace", lambda: linux.unshare(linux.CLONE_NEWUSER))
        _run_step("map the user", lambda: _map_ids(uid, gid))
    _run_step("new PID namespace", lambda: linux.unshare(linux.CLONE_NEWPID))


def _map_ids(uid: int, gid: int) -> None:
    # The kernel requires this before an unprivileged process may write gid_map, see
    # user_namespaces(7).
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1", encoding="ascii")


def _run_init(function: Callable[[], int], pipes: _Pipes, launcher: int, mask: set[int]) -> int:
    """Set the namespaces up, fork the function, reap orphans, and end with the function.

    This is process 1 of the sandbox. It also ends when one of its parents dies.
    """
    linux.die_with_parent()
    # From here on the launcher's death kills init. An earlier death is seen on this descriptor.
    if select.select([launcher], [], [], 0)[0]:
        return 128 + signal.SIGKILL
    try:
        _prepare_mounts()
    except _SetUpError as error:
        return _report_failure(pipes.news_write, error)
    child_ended, wake = os.pipe()
    handlers = {
        number: signal.getsignal(number) for number in (*TERMINATION_SIGNALS, signal.SIGCHLD)
    }
    _wake_on_ended_children(wake)
    command = os.fork()
    if command == 0:
        for descriptor in (pipes.life_read, pipes.news_write, launcher, child_ended, wake):
            os.close(descriptor)
        end_with(lambda: _run_function(function, handlers, mask))
    os.close(pipes.news_write)
    return _reap_until_command_ends(command, pipes.life_read, launcher, child_ended)


def _wake_on_ended_children(wake: int) -> None:
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _run_function(
    function: Callable[[], int], handlers: Mapping[signal.Signals, _Handler], mask: set[int]
) -> int:
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    # What arrived until here is delivered now, where `end_with` turns an interrupt into a status.
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return function()


def _reap_until_command_ends(command: int, life: int, launcher: int, child_ended: int) -> int:
    while True:
        ended = _collect_ended(command)
        if ended is not None:
            return ended
        ready, _, _ = select.select([life, launcher, child_ended], [], [])
        if launcher in ready:
            return 128 + signal.SIGKILL
        if child_ended in ready:
            os.read(child_ended, 512)
        if life in ready:
            numbers = os.read(life, 64)
            if not numbers:
                return 128 + signal.SIGKILL
            for number in numbers:
                os.kill(command, number)


def _collect_ended(command: int) -> int | None:
    """Reap all ended processes and return the command's status if it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == command:
            return _shell_status(status)


def _prepare_mounts() -> None:
    """Create mount, UTS, IPC and network namespaces with the mounts that programs expect."""
    kinds = linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWNET
    safe = linux.MS_NOSUID | linux.MS_NODEV
    silent = safe | linux.MS_NOEXEC
    _run_step("new mount, UTS, IPC and network namespaces", lambda: linux.unshare(kinds))
    _run_step(
        "private mounts",
        # Private: later mounts must not propagate to the machine.
        lambda: linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE),
    )
    _run_step("mount /proc", lambda: linux.mount("proc", "/proc", "proc", silent))
    _run_step("mount /run", lambda: linux.mount("tmpfs", "/run", "tmpfs", safe, "mode=0755"))
    _mount_sys(silent)
    # The standard folder of POSIX shared memory, which gets its own mount below.
    shared_memory = os.path.realpath("/dev/shm")  # noqa: S108
    Path("/run/netns").mkdir()
    if Path(shared_memory).is_dir():
        _run_step(
            "mount /dev/shm",
            lambda: linux.mount("tmpfs", shared_memory, "tmpfs", safe, "mode=1777"),
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _run_step("bring lo up", lambda: network_devices.set_device_up(control, "lo"))
    _provide_writable_folders()


def _mount_sys(flags: int) -> None:
    try:
        linux.mount("sysfs", "/sys", "sysfs", flags)
    except OSError as error:
        # Inside a container /sys is often read-only and cannot be mounted again. This is harmless,
        # since nothing here depends on its content.
        _log.warning("/sys in the sandbox shows the devices of the machine: %s", error)


def _provide_writable_folders() -> None:
    home = os.environ.get("HOME", "")
    if not os.access(home, os.W_OK):
        _HOME.mkdir(mode=0o700)
        os.environ["HOME"] = str(_HOME)
    if not os.access(os.environ.get("TMPDIR", "/tmp"), os.W_OK):  # noqa: S108 - only tested
        scratch = _HOME.with_name("tmp")
        scratch.mkdir(mode=0o700)
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
