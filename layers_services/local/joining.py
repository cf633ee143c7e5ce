"""Entry into one host of a running sandbox from outside.

The sandbox passes descriptors of its namespaces over a Unix socket (unix(7)). The owner of the
sandbox may enter these namespaces (setns(2)). A process started this way is in the sandbox's PID
namespace and ends with the sandbox.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from laggard.core import linux
from laggard.core.errors import DeploymentError
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
            f"the host cannot be entered ({error}): check that the emulation is still running and"
            " that it belongs to you"
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

    Args:
        before: function to call in the new process before the command replaces it
        command: program, which is searched in PATH, and its arguments
        environment: complete environment of the command

    Raises:
        DeploymentError: no process can be created
    """
    flush_output()
    try:
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
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 - the user's command
    except FileNotFoundError:
        _log.error("%s: command not found", command[0])
        return 127
    except OSError as error:
        _log.error("%s: %s", command[0], error.strerror)
        return 126


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
