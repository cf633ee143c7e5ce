"""Companion processes: forked helpers that cannot outlive their caller."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, Self, TypeVar

from laggard.core import linux
from laggard.core.errors import EmulationError, LaggardError
from laggard.core.process.termination_signals import hold_signals

_T = TypeVar("_T")


@dataclass(frozen=True)
class PackedError:
    """Error that can be sent between processes.

    Pickle alone would call the error's constructor with the wrong arguments.

    Attributes:
        kind: class of the error.
        message: its `args`.
        fields: its instance attributes.
    """

    kind: type[LaggardError]
    message: tuple[object, ...]
    fields: dict[str, object]

    def unpacked(self) -> LaggardError:
        """Return the error, to be raised."""
        error = self.kind.__new__(self.kind)
        error.args = self.message
        error.__dict__.update(self.fields)
        return error


def pack_error(error: LaggardError) -> PackedError:
    """Return an error as a value that can be pickled."""
    return PackedError(type(error), error.args, dict(vars(error)))


def fork_companion(name: str, body: Callable[[], int]) -> int:
    """Fork a process that runs `body` and exits with its result as status.

    The kernel kills it when the calling thread of this process ends.

    Args:
        name: process name for `ps`; the kernel keeps 15 bytes.
        body: function to run; an uncaught exception becomes status 1. It is printed to stderr,
            unless a connection to another process broke.

    Returns:
        Its process id.
    """
    parent = os.getpid()
    # An exception of a signal handler would be lost in the functions that libraries run at a fork.
    with hold_signals():
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
        # A garbage collection that traverses inherited objects copies their pages, which stops the
        # process for 45 ms.
        gc.freeze()
        status = body()
    # The process at the other end is gone. It was ended with the run, or its own end is reported.
    except ConnectionError:
        pass
    # The process ends here, so a printed traceback is the only possible report.
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        # Exit without the exit handlers and buffered output that the fork inherited.
        os._exit(status & 0xFF)


def _default_signals() -> None:
    """Reset the signal handlers that the fork inherited.

    SIGINT is ignored: a terminal sends Ctrl-C to the caller too, which then ends its companions.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def companion_is_alive(pid: int) -> bool:
    """Return True if a companion still runs; one that has ended remains to be waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def end_companion(pid: int) -> None:
    """Kill a companion and wait for it; do nothing if it has been waited for already."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def run_forked(name: str, function: Callable[[], _T]) -> _T:
    """Run `function` in a forked process and return its result, which must be picklable.

    Raises:
        EmulationError: if the process failed or died. A LaggardError of the function is raised
            unchanged.
    """
    with start_forked(name, function) as call:
        return call.result()


class ForkedCall(Generic[_T]):
    """Function that runs in a forked process; use it as a context manager.

    Args:
        name: name of the process.
        pid: its process id.
        reading: descriptor from which its result is read.
    """

    def __init__(self, name: str, pid: int, reading: int) -> None:
        self._name, self._pid = name, pid
        self._stream = os.fdopen(reading, "rb")

    def result(self) -> _T:
        """Wait for the result and return it; call this once.

        Raises:
            EmulationError: if the process failed or died. A LaggardError of the function is raised
                unchanged.
        """
        answer = self._stream.read()
        if not answer:
            raise EmulationError(
                f"the process `{self._name}` died before it returned a result; see its error"
                " output on stderr"
            )
        result = pickle.loads(answer)  # noqa: S301 - written by our own fork
        if isinstance(result, PackedError):
            raise result.unpacked()
        value: _T = result
        return value

    def is_done(self, timeout_s: float = 0.0) -> bool:
        """Wait at most so long, and return whether `result` would return or raise at once."""
        return bool(select.select([self._stream], [], [], timeout_s)[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # It has answered, or the caller is being interrupted: either way it is no longer needed.
        self._stream.close()
        end_companion(self._pid)


def start_forked(name: str, function: Callable[[], _T]) -> ForkedCall[_T]:
    """Start to run `function`, whose result must be picklable, in a forked process."""
    reading, writing = os.pipe()
    pid = fork_companion(name, lambda: _run_and_answer(function, reading, writing))
    os.close(writing)
    return ForkedCall(name, pid, reading)


def _run_and_answer(function: Callable[[], _T], reading: int, writing: int) -> int:
    os.close(reading)
    result: _T | PackedError
    try:
        result = function()
    except LaggardError as error:
        result = pack_error(error)
    except OSError as error:
        # A network or a process that is gone is no fault of the function.
        result = pack_error(
            EmulationError(
                f"the emulation failed while it was set up or measured: {error.strerror or error} —"
                " one of its processes may have ended; see the files in the run's logs folder"
            )
        )
    except Exception as error:  # noqa: BLE001 - it crosses to the caller as one message
        result = pack_error(EmulationError(f"{type(error).__name__}: {error}"))
        traceback.print_exc()
    with os.fdopen(writing, "wb") as stream:
        pickle.dump(result, stream)
    return 0
