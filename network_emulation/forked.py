"""Running a function in a process of its own that cannot outlive its caller."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from laggard.core import linux
from laggard.core.errors import EmulationError, LaggardError

_T = TypeVar("_T")


@dataclass(frozen=True)
class PackedError:
    """An error on its way between processes; pickle alone would call its constructor with the wrong
    arguments.
    """

    kind: type[LaggardError]
    message: tuple[object, ...]
    fields: dict[str, object]

    def unpacked(self) -> LaggardError:
        """The error, to be raised."""
        error = self.kind.__new__(self.kind)
        error.args = self.message
        error.__dict__.update(self.fields)
        return error


def pack_error(error: LaggardError) -> PackedError:
    """An error as a value that pickles."""
    return PackedError(type(error), error.args, dict(vars(error)))


def fork_companion(name: str, body: Callable[[], int]) -> int:
    """Fork a process that runs `body` and ends with its status, or is killed when this process's
    calling thread ends.

    Args:
        name: how `ps` shows it; the kernel keeps 15 bytes.
        body: what it does; an exception that leaves it is printed to stderr and becomes status 1.

    Returns:
        Its process id.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run_companion(parent, name, body)
    return pid


def _run_companion(parent: int, name: str, body: Callable[[], int]) -> NoReturn:
    status = 1
    try:
        linux.die_with_parent(parent)
        linux.set_process_name(name)
        _default_signals()
        # A garbage collection that traverses inherited objects copies them page by page, which
        # stops the process for 45 ms.
        gc.freeze()
        status = body()
    # The process ends here; the traceback is all that can be left behind.
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(status & 0xFF)


def _default_signals() -> None:
    """Forget the parent's handlers; a terminal's Ctrl-C is for the caller to handle, who then ends
    its companions.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def companion_is_alive(pid: int) -> bool:
    """Whether a companion still runs; one that has ended stays to be waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def end_companion(pid: int) -> None:
    """Kill a companion and wait for it; one that has already been waited for is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def run_forked(name: str, function: Callable[[], _T]) -> _T:
    """Run `function` in a forked process and return its result, which must pickle.

    Raises:
        EmulationError: the process failed or died; a LaggardError of its own is raised as it was.
    """
    reading, writing = os.pipe()
    pid = fork_companion(name, lambda: _run_and_answer(function, reading, writing))
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as stream:
            answer = stream.read()
    finally:
        # It has answered, or the caller is being interrupted: either way nobody needs it any more.
        end_companion(pid)
    if not answer:
        raise EmulationError(
            f"the process `{name}` died before it answered; its output on stderr says why"
        )
    result = pickle.loads(answer)  # noqa: S301 - written by our own fork
    if isinstance(result, PackedError):
        raise result.unpacked()
    value: _T = result
    return value


def _run_and_answer(function: Callable[[], _T], reading: int, writing: int) -> int:
    os.close(reading)
    result: _T | PackedError
    try:
        result = function()
    except LaggardError as error:
        result = pack_error(error)
    except Exception as error:  # noqa: BLE001 - it crosses to the caller as one message
        result = pack_error(EmulationError(f"{type(error).__name__}: {error}"))
        traceback.print_exc()
    with os.fdopen(writing, "wb") as stream:
        pickle.dump(result, stream)
    return 0
