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


def require_one_thread(purpose: str) -> None:
    """Refuse to fork a process that has threads, since a fork takes only one of them along.

    Raises:
        DeploymentError: naming the threads.
    """
    threads = linux.thread_names()
    if len(threads) > 1:
        raise DeploymentError(
            f"this process has {len(threads)} threads ({', '.join(threads)}), and {purpose} forks"
            " it, which takes only one along; do it before starting threads or importing libraries"
            " that do"
        )


def fork_process(purpose: str) -> int:
    """os.fork() of a process without threads, with nothing buffered: 0 in the child, its id in the
    parent.

    Raises:
        DeploymentError: this process has threads, or the kernel refuses.
    """
    require_one_thread(purpose)
    flush_output()
    try:
        return os.fork()
    except OSError as error:
        raise DeploymentError(
            f"{purpose} needs one more process: {error}; see `ulimit -u` and the memory left"
        ) from error


def flush_output() -> None:
    """Write out what is buffered, so that it is not written again by a fork, or lost by an exit."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def end_with(body: Callable[[], int]) -> NoReturn:
    """Run the rest of a forked process and exit with the status that `body` returns.

    What the parent registered for its own exit is not run. An exception is printed and becomes
    status 1, an interrupt 130.
    """
    status = 1
    try:
        status = body()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    # The process ends here; the traceback is all that can be left behind.
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(status & 0xFF)
