"""Execution of a function inside namespaces that the kernel removes as a whole.

    caller ── launcher ── init (pid 1 of a new PID namespace) ── the function

The launcher exists because the caller must keep its own namespaces and an ordinary user cannot
undo `unshare(CLONE_NEWPID)`. If any of these processes is killed, the others end too. The launcher
dies with the caller, and init with the launcher (PR_SET_PDEATHSIG; init also watches both through
descriptors). Init ends with the function. When init ends, the kernel kills everything in its PID
namespace, and the last process closes the mount and network namespaces.

A Ctrl-C reaches the function directly, because all processes stay in the terminal's process group.
The caller waits for its cleanup. SIGTERM, SIGHUP and SIGINT that are sent to the caller only are
forwarded over the pipe.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

from laggard.core import linux
from laggard.layers_services.local import diagnosis, network_devices
from laggard.layers_services.local.forked import end_with, fork_process

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNAL_GRACE_S = 0.05
_HOME = Path("/run/home")
# These folders are mounted anew in the sandbox.
_PRIVATE_PATHS = ("/proc", "/sys", "/run", "/dev/shm")  # noqa: S108
_OWN_FOLDERS = tuple(Path(os.path.realpath(name)) for name in _PRIVATE_PATHS)
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


def run_in_sandbox(function: Callable[[], int]) -> int:
    """Run `function` in a sandbox and return its exit status.

    The function runs in a fork of this process and sees all its objects and open descriptors.
    Unless this process is privileged, the function is root of a new user namespace. It has its own
    PID, mount, network, UTS and IPC namespaces, with their own `/proc`, `/sys`, `/dev/shm` and an
    empty writable `/run` (with `/run/netns`). `lo` is up, and HOME and the temporary folder are
    writable. The new `/sys` hides `/sys/fs/cgroup`; descriptors opened before stay usable.

    Args:
        function: function that returns an exit status, 0 to 255; an exception that leaves it is
            printed and gives status 1

    Returns:
        The function's status, or 128 + the signal that killed it or the sandbox.

    Raises:
        DeploymentError: this process has several threads, or cannot fork
        PrerequisiteError: the kernel refuses a step of the setup; the error carries the command
            that permits it
    """
    pipes = _Pipes.make()
    waited = {*_FORWARDED, signal.SIGCHLD}
    # Blocked signals wait for `sigwaitinfo`, so none is lost between the fork and the first wait.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        caller = os.getpid()
        launcher = fork_process("entering a sandbox")
        if launcher == 0:
            end_with(lambda: _run_launcher(function, pipes, caller, mask))
        os.close(pipes.life_read)
        os.close(pipes.news_write)
        return _forward_signals(launcher, pipes, waited)
    finally:
        os.close(pipes.life_write)
        os.close(pipes.news_read)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forward_signals(launcher: int, pipes: _Pipes, waited: Iterable[signal.Signals]) -> int:
    """Forward signals until the launcher ends and return its status, which is the function's."""
    while True:
        pid, status = os.waitpid(launcher, os.WNOHANG)
        if pid == launcher:
            _raise_reported_failure(pipes.news_read)
            return _shell_status(status)
        signalled = signal.sigwaitinfo(waited)
        # A positive code means that the kernel sent the signal for a terminal. It then reached the
        # whole process group, including the function.
        if signalled.si_signo != signal.SIGCHLD and signalled.si_code <= 0:
            _send_signal_number(pipes.life_write, signalled.si_signo)


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
    received: dict[int, float] = {}
    child_ended, wake = os.pipe()
    handlers = {number: signal.getsignal(number) for number in (*_FORWARDED, signal.SIGCHLD)}
    _watch_signals(received, wake)
    command = os.fork()
    if command == 0:
        for descriptor in (pipes.life_read, pipes.news_write, launcher, child_ended, wake):
            os.close(descriptor)
        _restore_signals(handlers, mask)
        end_with(function)
    os.close(pipes.news_write)
    return _reap_until_command_ends(command, pipes.life_read, launcher, child_ended, received)


def _watch_signals(received: dict[int, float], wake: int) -> None:
    def note(number: int, _frame: FrameType | None) -> None:
        received[number] = time.monotonic()

    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (*_FORWARDED, signal.SIGCHLD):
        signal.signal(number, note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_FORWARDED, signal.SIGCHLD})


def _restore_signals(handlers: Mapping[signal.Signals, _Handler], mask: set[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _reap_until_command_ends(
    command: int, life: int, launcher: int, child_ended: int, received: dict[int, float]
) -> int:
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
            for number in set(numbers):
                _pass_on(command, number, received)


def _collect_ended(command: int) -> int | None:
    """Reap all ended processes and return the command's status if it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == command:
            return _shell_status(status)


def _pass_on(command: int, number: int, received: dict[int, float]) -> None:
    """Signal the command, unless the signal has reached the whole process group already.

    Init is in the same process group. If it received the signal itself, so did the command.
    """
    time.sleep(_SIGNAL_GRACE_S)
    if time.monotonic() - received.get(number, -1.0) > 10 * _SIGNAL_GRACE_S:
        os.kill(command, number)


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
