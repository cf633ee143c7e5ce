"""Life of a process between fork and exit, without exec."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from laggard.core import linux
from laggard.core.errors import DeploymentError
from laggard.core.files.disk_space import describe_os_error, is_disk_error
from laggard.core.process.termination_signals import hold_signals


def require_one_thread(purpose: str) -> None:
    """Reject a process that has several threads, because a fork copies only one of them.

    Args:
        purpose: reason for the fork, as the subject of the message

    Raises:
        DeploymentError: the process has several threads; the message names them
    """
    threads = linux.thread_names()
    if len(threads) > 1:
        raise DeploymentError(
            f"this process has {len(threads)} threads ({', '.join(threads)}), but {purpose}"
            " requires a single-threaded process, because a fork copies only one thread; do it"
            " before starting threads or importing libraries that start them"
        )


def fork_process(purpose: str) -> int:
    """Fork a single-threaded process with empty output buffers.

    Returns:
        0 in the child, the child's process id in the parent.

    Raises:
        DeploymentError: this process has several threads, or the kernel refuses
    """
    require_one_thread(purpose)
    flush_output()
    try:
        # An exception of a signal handler would be lost in the functions that libraries run at a
        # fork.
        with hold_signals():
            return os.fork()
    except OSError as error:
        raise DeploymentError(
            f"{purpose} requires another process, which the kernel refused: {error}; check"
            " `ulimit -u` and the free memory"
        ) from error


def flush_output() -> None:
    """Flush standard output and error, so that a fork repeats and an exit loses no output."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def end_with(body: Callable[[], int]) -> NoReturn:
    """Run the rest of a forked process and exit with the status that `body` returns.

    Exit handlers of the parent do not run. An exception is printed and gives status 1; an
    interrupt gives status 130. Of a disk that cannot be written to, only the message is printed.
    """
    status = 1
    try:
        status = body()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    # The process ends here, so its output is the only way to report the exception.
    except BaseException as error:  # noqa: BLE001
        if isinstance(error, OSError) and is_disk_error(error):
            print(describe_os_error(error), file=sys.stderr)  # noqa: T201 - goes to the log
        else:
            traceback.print_exc()
    finally:
        flush_output()
        os._exit(status & 0xFF)
