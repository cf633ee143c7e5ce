"""Exit status and error message of a command that fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import click

from laggard.core.errors import EXIT_INTERRUPTED, LaggardError, ScenarioError

CommandParameters = ParamSpec("CommandParameters")


def handle_errors(
    command: Callable[CommandParameters, int | None],
) -> Callable[CommandParameters, None]:
    """Convert the exceptions of `laggard.core.errors` to a message and an exit status."""

    @wraps(command)
    def run(*args: CommandParameters.args, **kwargs: CommandParameters.kwargs) -> None:
        try:
            status = command(*args, **kwargs)
        except LaggardError as error:
            _print_error(error, as_json=bool(kwargs.get("as_json")))
            status = error.exit_status
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            status = EXIT_INTERRUPTED
        sys.exit(status or 0)

    return run


def _print_error(error: LaggardError, *, as_json: bool) -> None:
    if as_json:
        problems = [vars(p) for p in error.problems] if isinstance(error, ScenarioError) else []
        document = {"error": str(error), "kind": type(error).__name__, "problems": problems}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(
            f"error: {error}" if not isinstance(error, ScenarioError) else str(error), err=True
        )
