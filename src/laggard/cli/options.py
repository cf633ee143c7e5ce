"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

CommandParameters = ParamSpec("CommandParameters")
CommandResult = TypeVar("CommandResult")

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Write the result as JSON to standard output."
)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FILE.KEY=VALUE",
    help="Override a key of a scenario file (YAML value).",
)
runs_option = click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder of the run folders.",
)
scenario_argument = click.argument("scenario", type=click.Path(path_type=Path))
links_option = click.option(
    "--links",
    type=click.Choice(["auto", "netem", "userspace"]),
    default="auto",
    show_default=True,
    help="Link emulation by the kernel's netem or by Laggard's userspace emulator.",
)
dilation_option = click.option(
    "--dilation",
    type=click.FloatRange(min=1),
    help="Run this many times slower than real time; by default the least that the CPU shares"
    " need.",
)
app_conf_option = click.option(
    "--app-conf",
    metavar="NAME",
    help="Set of variables in workflow_env.yaml for the workflow.",
)

fidelity_option = click.option(
    "--fidelity",
    type=click.Choice(["require", "record"]),
    default="require",
    show_default=True,
    help=(
        "After a failed fidelity check: end the run (require), or continue and mark it unfaithful"
        " (record)."
    ),
)

# In reverse order of the help, because click lists the option that is applied last first.
_CONTINUUM_OPTIONS = (
    app_conf_option,
    fidelity_option,
    dilation_option,
    links_option,
    runs_option,
    set_option,
)


def continuum_options(
    command: Callable[CommandParameters, CommandResult],
) -> Callable[CommandParameters, CommandResult]:
    """Add the options of every command that starts a continuum."""
    for option in _CONTINUUM_OPTIONS:
        command = option(command)
    return command
