"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

CommandParameters = ParamSpec("CommandParameters")
CommandResult = TypeVar("CommandResult")

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Answer on standard output as JSON."
)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FILE.KEY=VALUE",
    help="Override any key of any scenario file (YAML value).",
)
runs_option = click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where run folders are kept.",
)
scenario_argument = click.argument("scenario", type=click.Path(path_type=Path))
links_option = click.option(
    "--links",
    type=click.Choice(["auto", "netem", "userspace"]),
    default="auto",
    show_default=True,
    help="What shapes the links: the kernel's netem, or our userspace emulator.",
)
dilation_option = click.option(
    "--dilation",
    type=click.FloatRange(min=1),
    help="Run so many times slower than real time; without it, as little as the CPU shares allow.",
)
app_conf_option = click.option(
    "--app-conf",
    metavar="NAME",
    help="The set of variables of workflow_env.yaml that the workflow sees.",
)

fidelity_option = click.option(
    "--fidelity",
    type=click.Choice(["require", "record"]),
    default="require",
    show_default=True,
    help="When a fidelity check fails: end the run, or train anyway and end as unfaithful.",
)

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
    """Add the options of every command that starts a continuum, in the order of their help."""
    for option in _CONTINUUM_OPTIONS:
        command = option(command)
    return command
