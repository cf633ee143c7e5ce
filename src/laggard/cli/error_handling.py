"""Exit status and error message of a command that fails: no exception ends in a traceback."""

from __future__ import annotations

import errno
import json
import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from typing import ParamSpec

from laggard.core.errors import (
    EXIT_INTERRUPTED,
    InputError,
    LaggardError,
    OutputError,
    ScenarioError,
)
from laggard.core.files.disk_space import describe_os_error, is_disk_error
from laggard.core.text.standard_streams import find_lost_output
from laggard.core.text.terminal_output import print_text

log = logging.getLogger(__name__)

CommandParameters = ParamSpec("CommandParameters")

ENVIRONMENT_ERRORS = (OSError, ValueError, MemoryError, RecursionError)
"""Exceptions for which a path, a file's content or the machine is the usual reason."""


def handle_errors(
    command: Callable[CommandParameters, int | None],
) -> Callable[CommandParameters, None]:
    """Convert exceptions to a message and an exit status.

    These are the exceptions of `laggard.core.errors` and those of `ENVIRONMENT_ERRORS`.
    """

    @wraps(command)
    def run(*args: CommandParameters.args, **kwargs: CommandParameters.kwargs) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            status = command(*args, **kwargs)
        except LaggardError as error:
            status = print_error(error, as_json=as_json)
        except ENVIRONMENT_ERRORS as error:
            status = print_error(to_own_error(error), as_json=as_json)
        except KeyboardInterrupt:
            print_text("interrupted", err=True)
            status = EXIT_INTERRUPTED
        sys.exit(status or 0)

    return run


class OwnStatusExit(SystemExit):
    """Exit of a command that has other results than its output, and that lost output never fails.

    A run, for example, has its run folder.
    """


def keep_own_status(
    command: Callable[CommandParameters, None],
) -> Callable[CommandParameters, None]:
    """Let a command end with the exit status of its work, although its output may be lost."""

    @wraps(command)
    def run(*args: CommandParameters.args, **kwargs: CommandParameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except SystemExit as end:
            raise OwnStatusExit(end.code) from end

    return run


def report_lost_output(end: SystemExit) -> SystemExit:
    """Report lost standard output, and return the exit of the program.

    A command that only prints has failed then. A reader that has ended, as in `| head`, is normal:
    nothing is printed, and the status is that of a program that SIGPIPE ended.
    """
    error = find_lost_output()
    if error is None:
        return end
    has_failed = end.code or isinstance(end, OwnStatusExit)
    if error.errno == errno.EPIPE:
        return end if has_failed else SystemExit(128 + signal.SIGPIPE)
    kind = "warning" if isinstance(end, OwnStatusExit) else "error"
    print_text(
        f"{kind}: standard output: {error.strerror}, so some of the output is lost — free space"
        " there, or redirect it to a file",
        err=True,
    )
    return end if has_failed else SystemExit(1)


def to_own_error(error: Exception) -> LaggardError:
    """Convert an exception of `ENVIRONMENT_ERRORS`; its traceback is logged with `-v`.

    A full disk or a limit of the machine is no fault of the input.
    """
    log.info("traceback of the error", exc_info=error)
    if isinstance(error, OSError) and error.strerror:
        kind = OutputError if is_disk_error(error) else InputError
        return kind(describe_os_error(error))
    details = str(error).strip().partition("\n")[0]
    name = type(error).__name__
    return InputError(
        f"{name}{': ' + details if details else ''} — check the input for damage; `laggard -v`"
        " shows where this happened"
    )


def print_error(error: LaggardError, *, as_json: bool = False) -> int:
    """Print an error and return its exit status."""
    if as_json:
        problems = [asdict(p) for p in error.problems] if isinstance(error, ScenarioError) else []
        document = {"error": str(error), "kind": type(error).__name__, "problems": problems}
        print_text(json.dumps(document, indent=2))
    else:
        print_text(
            f"error: {error}" if not isinstance(error, ScenarioError) else str(error), err=True
        )
    return error.exit_status
