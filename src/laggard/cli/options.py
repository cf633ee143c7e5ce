"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from laggard.core.errors import InputError

CommandParameters = ParamSpec("CommandParameters")
CommandResult = TypeVar("CommandResult")
Command = TypeVar("Command", bound=Callable[..., object])

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
duration_option = click.option(
    "--for",
    "duration",
    metavar="TIME",
    help="Time between launch and finalize, such as 10min, if nothing is trained; by default 0.",
)
report_option = click.option(
    "--report/--no-report",
    default=True,
    help="Draw the report of each run, which takes seconds; `laggard report RUN` draws it later.",
)


def recorded_option(condition: str = "") -> Callable[[Command], Command]:
    """Return the option of a command that takes step times from runs, with a condition of it."""
    return click.option(
        "--from",
        "recorded",
        multiple=True,
        metavar="RUN",
        help=(
            f"{condition}Take step times from this run, again and again for several; by default a"
            " few steps are measured on this machine."
        ),
    )


artifacts_option = click.option(
    "--artifacts",
    "artifacts_option",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder with the files of the plays, {{ artifacts_dir }}; by default SCENARIO.",
)
_PLAY_OPTIONS = (
    click.option(
        "--app-conf",
        metavar="NAME",
        help="Set of variables in workflow_env.yaml for the workflow.",
    ),
    artifacts_option,
    click.argument("artifacts", type=click.Path(path_type=Path), required=False),
    scenario_argument,
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
    fidelity_option,
    dilation_option,
    links_option,
    runs_option,
    set_option,
)


def scenario_and_plays(
    command: Callable[..., CommandResult],
) -> Callable[..., CommandResult]:
    """Add the arguments SCENARIO and ARTIFACTS, and the options of the plays.

    The command receives `scenario`, and `plays` with the values of the others.
    """

    @functools.wraps(command)
    def collect(
        *arguments: object,
        scenario: Path,
        artifacts: Path | None,
        artifacts_option: Path | None,
        app_conf: str | None,
        **options: object,
    ) -> CommandResult:
        from laggard.layers_services.e2clab.play_inputs import PlayInputs

        if artifacts is not None and artifacts_option is not None:
            raise InputError(
                f"{artifacts}: the folder of artifacts is already given with --artifacts"
                f" {artifacts_option} — omit one of them"
            )
        folder = artifacts_option or artifacts or scenario
        plays = PlayInputs(folder.absolute(), app_conf)
        return command(*arguments, scenario=scenario, plays=plays, **options)

    for option in _PLAY_OPTIONS:
        collect = option(collect)
    return collect


def parse_duration(duration: str | None) -> float | None:
    """Return the seconds of a value of `--for`; None if there is none.

    Raises:
        InputError: the value is no duration.
    """
    from laggard.core.units import parse_duration_s

    if duration is None:
        return None
    try:
        return parse_duration_s(duration)
    except ValueError as error:
        raise InputError(f"--for {duration}: {error}") from error


def continuum_options(
    command: Callable[CommandParameters, CommandResult],
) -> Callable[CommandParameters, CommandResult]:
    """Add the options of every command that starts a continuum."""
    for option in _CONTINUUM_OPTIONS:
        command = option(command)
    return command
