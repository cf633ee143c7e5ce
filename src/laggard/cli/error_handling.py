"""Exit status and error message of a command that fails: no exception ends in a traceback."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from laggard.core.disk_space import describe_os_error
from laggard.core.errors import EXIT_INTERRUPTED, InputError, LaggardError, ScenarioError
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
            status = print_error(to_input_error(error), as_json=as_json)
        except KeyboardInterrupt:
            print_text("interrupted", err=True)
            status = EXIT_INTERRUPTED
        sys.exit(status or 0)

    return run


def to_input_error(error: Exception) -> InputError:
    """Convert an exception of `ENVIRONMENT_ERRORS`; its traceback is logged with `-v`."""
    log.info("traceback of the error", exc_info=error)
    if isinstance(error, OSError) and error.strerror:
        return InputError(describe_os_error(error))
    details = str(error).strip().partition("\n")[0]
    name = type(error).__name__
    return InputError(
        f"{name}{': ' + details if details else ''} — check the input for damage; `laggard -v`"
        " shows where this happened"
    )


def print_error(error: LaggardError, *, as_json: bool = False) -> int:
    """Print an error and return its exit status."""
    if as_json:
        problems = [vars(p) for p in error.problems] if isinstance(error, ScenarioError) else []
        document = {"error": str(error), "kind": type(error).__name__, "problems": problems}
        print_text(json.dumps(document, indent=2))
    else:
        print_text(
            f"error: {error}" if not isinstance(error, ScenarioError) else str(error), err=True
        )
    return error.exit_status
