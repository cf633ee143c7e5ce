"""Entry into one host of a running sandbox from outside.

The sandbox passes descriptors of its namespaces over a Unix socket (unix(7)). The owner of the
sandbox may enter these namespaces (setns(2)), after a check that they are those of a process of the
same user. A process started this way is in the sandbox's PID namespace and ends with the sandbox.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from laggard.core import linux
from laggard.core.errors import DeploymentError
from laggard.core.process.termination_signals import hold_signals
from laggard.layers_services.local.forked import end_with, flush_output, require_one_thread

_OWN = ("user", "mnt", "ipc", "pid")
# The order matters: entering the user namespace gives the capabilities for all others.
_FLAGS = (
    linux.CLONE_NEWUSER,
    linux.CLONE_NEWNS,
    linux.CLONE_NEWIPC,
    linux.CLONE_NEWPID,
    linux.CLONE_NEWNET,
    linux.CLONE_NEWUTS,
)
NAMESPACE_COUNT = len(_FLAGS)
"""Number of descriptors that `open_namespaces` yields and `enter_namespaces` takes."""

# Requests of ioctl_ns(2).
_NS_GET_USERNS = 0xB701
_NS_GET_NSTYPE = 0xB703
# A program may use files, users, sockets and the host's network, trace its own processes and set
# priorities. It may not mount, enter other namespaces, or change the machine (clock, modules,
# devices, reboot, audit).
_KEPT_CAPABILITIES = frozenset(
    {
        linux.CAP_CHOWN,
        linux.CAP_DAC_OVERRIDE,
        linux.CAP_DAC_READ_SEARCH,
        linux.CAP_FOWNER,
        linux.CAP_FSETID,
        linux.CAP_KILL,
        linux.CAP_SETGID,
        linux.CAP_SETUID,
        linux.CAP_SETPCAP,
        linux.CAP_NET_BIND_SERVICE,
        linux.CAP_NET_ADMIN,
        linux.CAP_NET_RAW,
        linux.CAP_IPC_LOCK,
        linux.CAP_SYS_CHROOT,
        linux.CAP_SYS_PTRACE,
        linux.CAP_SYS_NICE,
        linux.CAP_SYS_RESOURCE,
        linux.CAP_SETFCAP,
    }
)
_PAUSING = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
_log = logging.getLogger(__name__)


@contextmanager
def open_namespaces(network: Path, uts: Path) -> Iterator[tuple[int, ...]]:
    """Open descriptors of one host's namespaces inside the sandbox, for `enter_namespaces`.

    Args:
        network: file that the host's network namespace is bound to
        uts: file that its UTS namespace is bound to
    """
    paths = [*(Path(f"/proc/self/ns/{kind}") for kind in _OWN), network, uts]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb", buffering=0)) for path in paths]
        yield tuple(file.fileno() for file in files)


def require_own_namespaces(descriptors: Sequence[int], pid: int) -> None:
    """Require namespaces to be those of a running process of the caller's user.

    The two namespaces of the host must belong to the same user namespace. The kernel does not give
    the process's number to another one while this function reads it, because it is alive at the
    end, and the comparison with its namespaces excludes a number that was given anew before.

    Args:
        descriptors: descriptors of `NAMESPACE_COUNT` namespaces, as `open_namespaces` yields them
        pid: process id, in the caller's PID namespace, of the process that sent them

    Raises:
        DeploymentError: they are not, or the process is not visible or has ended
    """
    try:
        process = os.pidfd_open(pid)
    except (OSError, ValueError) as error:
        raise DeploymentError(
            f"the emulation's process (id {pid}) is not visible here, so it cannot be checked — run"
            " this command where `laggard emulate` was started, in the same container"
        ) from error
    try:
        reason = _find_foreign(descriptors, pid)
        if select.select([process], [], [], 0)[0]:
            reason = "it has ended"
    except OSError as error:
        reason = str(error)
    finally:
        os.close(process)
    if reason:
        raise DeploymentError(
            f"the host is not entered, because its emulation (process {pid}) is not one of your own"
            f" user: {reason} — end it, and start it again with `laggard emulate SCENARIO`"
        )


def _find_foreign(descriptors: Sequence[int], pid: int) -> str:
    """Return the first thing that is not the caller's user's, or an empty text."""
    own, uids = os.geteuid(), linux.user_ids(pid)
    if uids != (own,) * len(uids):
        return f"its user ids are {', '.join(map(str, uids))}, and yours is {own}"
    for descriptor, flag in zip(descriptors, _FLAGS, strict=True):
        if fcntl.ioctl(descriptor, _NS_GET_NSTYPE) != flag:
            return "it sent a namespace of another kind"
    for kind, descriptor in zip(_OWN, descriptors, strict=False):
        if not os.path.samestat(os.fstat(descriptor), Path(f"/proc/{pid}/ns/{kind}").stat()):
            return f"it sent the {kind} namespace of another process"
    for descriptor in descriptors[len(_OWN) :]:
        owner = fcntl.ioctl(descriptor, _NS_GET_USERNS)
        try:
            if not os.path.samestat(os.fstat(owner), os.fstat(descriptors[0])):
                return "it sent a host of another sandbox"
        finally:
            os.close(owner)
    return ""


def enter_namespaces(descriptors: Sequence[int]) -> None:
    """Enter the namespaces of a host and close their descriptors; the current folder is kept.

    The calling process stays in its own PID namespace. Only processes that it forks afterwards are
    in the sandbox's PID namespace.

    Raises:
        DeploymentError: the kernel refuses, because the sandbox belongs to another user or has
            ended; or this process has several threads
    """
    require_one_thread("entering a host")
    folder = Path.cwd()
    try:
        for descriptor, flag in zip(descriptors, _FLAGS, strict=True):
            if flag != linux.CLONE_NEWUSER or not _is_own_user_namespace(descriptor):
                linux.setns(descriptor, flag)
    except OSError as error:
        raise DeploymentError(
            f"the host cannot be entered ({error}): check that the emulation is still running, and"
            " run this command outside of its hosts, as the user that started it"
        ) from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    # Entering a mount namespace changes the current folder to its root.
    os.chdir(folder if folder.is_dir() else "/")


def run_inside(
    before: Callable[[], None], command: Sequence[str], environment: dict[str, str]
) -> int:
    """Run a command on this terminal after `enter_namespaces` and return a shell's exit status.

    The command has the capabilities of its user in the sandbox, except those that would change the
    sandbox itself or the machine.

    Args:
        before: function to call in the new process before the command replaces it
        command: program, which is searched in PATH, and its arguments
        environment: complete environment of the command

    Raises:
        DeploymentError: no process can be created
    """
    flush_output()
    try:
        with hold_signals():
            pid = os.fork()
    except OSError as error:
        raise DeploymentError(
            f"no process can be created in the host ({error}): check that the emulation is still"
            " running"
        ) from error
    if pid == 0:
        end_with(lambda: _exec_command(before, command, environment))

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(pid, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    # The terminal sends Ctrl-C to the command as well, which decides how to react.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _wait_for_exit(pid)


def _is_own_user_namespace(descriptor: int) -> bool:
    return os.path.samestat(os.fstat(descriptor), Path("/proc/self/ns/user").stat())


def _exec_command(
    before: Callable[[], None], command: Sequence[str], environment: dict[str, str]
) -> int:
    linux.die_with_parent()
    before()
    # Python ignores SIGPIPE; a program expects its default, as in a shell.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        linux.limit_capabilities(_KEPT_CAPABILITIES)
    except OSError as error:
        _log.error("capabilities cannot be dropped: %s", error.strerror)
        return 126
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 - the user's command
    except OSError as error:
        if isinstance(error, FileNotFoundError) or _is_nowhere(command[0], environment):
            _log.error("%s: command not found", command[0])
            return 127
        _log.error("%s: %s", command[0], error.strerror)
        return 126


def _is_nowhere(program: str, environment: Mapping[str, str]) -> bool:
    """Return whether no folder of PATH has a program, if PATH is searched for it.

    The kernel's answer for a folder that this user may not search hides that.
    """
    folders = os.get_exec_path(environment)
    return "/" not in program and not any(
        os.path.lexists(os.path.join(folder, program))  # noqa: PTH118 - no error if unsearchable
        for folder in folders
    )


def _wait_for_exit(pid: int) -> int:
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        # Ctrl-Z must pause this process and the command together. The limiter of the host's CPU
        # share also stops the command, with another signal, and continues it itself.
        if os.WSTOPSIG(status) in _PAUSING:
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
