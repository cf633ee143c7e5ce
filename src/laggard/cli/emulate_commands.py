"""Commands of an emulation without training: `emulate`, `ssh`, `links`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import (
    continuum_options,
    json_option,
    parse_duration,
    runs_option,
    scenario_and_plays,
)
from laggard.cli.result_output import get_exit_status, print_result
from laggard.core.text.terminal_output import print_text

if TYPE_CHECKING:
    from laggard.layers_services.e2clab.play_inputs import PlayInputs
    from laggard.network_emulation.probe import Requested
    from laggard.run_folder.fidelity_checks import FidelityPolicy
    from laggard.run_folder.fidelity_violations import TimedViolation


@click.command("emulate")
@scenario_and_plays
@continuum_options
@click.option(
    "--for",
    "duration",
    metavar="TIME",
    help="End after this time, such as 10min; by default at Ctrl-C.",
)
@json_option
@keep_own_status
@handle_errors
def emulate_scenario(
    scenario: Path,
    plays: PlayInputs,
    overrides: tuple[str, ...],
    runs: Path,
    links: Requested,
    dilation: float | None,
    fidelity: FidelityPolicy,
    duration: str | None,
    as_json: bool,
) -> int:
    """Start only the continuum, for programs of your own.

    The links and CPU shares are verified first. No workload.yaml is needed. `laggard ssh HOST`
    runs programs in a host, and `laggard links` shows the links. Violations of the requested
    limits are reported at once. The emulation continues, and its exit status at the end is 3. With
    --json the command writes one line when the continuum is up, one per report of violations, and
    one at the end.
    """
    from laggard.emulate.emulation import EmulationCallbacks, run_emulation
    from laggard.emulate.output import (
        EmulationStatus,
        build_status_document,
        build_violations_document,
        format_status,
        format_violations,
    )
    from laggard.run.runner import RunOptions
    from laggard.scenario.load import load_scenario

    def print_status(up: EmulationStatus) -> None:
        print_text(json.dumps(build_status_document(up)) if as_json else format_status(up))

    def print_violations(violations: Sequence[TimedViolation]) -> None:
        print_text(
            json.dumps(build_violations_document(violations))
            if as_json
            else format_violations(violations),
            err=not as_json,
        )

    loaded = load_scenario(scenario, overrides, training=False, plays=plays)
    for warning in () if as_json else loaded.warnings:
        print_text(f"warning: {warning}", err=True)
    options = RunOptions(
        runs,
        links=links,
        dilation=dilation,
        quiet=as_json,
        command=tuple(sys.argv),
        fidelity=fidelity,
    )
    record, folder = run_emulation(
        loaded,
        options,
        EmulationCallbacks(print_status, print_violations),
        parse_duration(duration),
    )
    if as_json:
        print_text(json.dumps({**record.model_dump(mode="json"), "folder": str(folder)}))
    else:
        print_result(record, folder, as_json=False)
    return get_exit_status(record)


@click.command(
    "ssh", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--run", metavar="RUN", help="Run folder or id of the emulation, if several are running."
)
@runs_option
@keep_own_status
@handle_errors
def open_shell(host: str, command: tuple[str, ...], run: str | None, runs: Path) -> int:
    """Open a shell or run a COMMAND in an emulated host.

    The command is limited to the host's CPU share. HOST is a host's name, or a pattern that
    matches only one host. The command sees your files and runs as your user, but with the host's
    network, host name and processes. Options must precede HOST.

    The emulation must be one of your own user. The command may change the host's network, but not
    mount, or change the machine, not even as root. Of your environment it gets TERM, COLORTERM,
    LANG, LANGUAGE, LC_*, HOME, PATH, USER, LOGNAME, SHELL, TZ, TMPDIR, PYTHONPATH and VIRTUAL_ENV;
    `laggard ssh HOST env NAME=VALUE COMMAND` sets others.
    """
    from laggard.emulate.host_shell import find_emulation, run_in_host

    return run_in_host(
        find_emulation(run, runs), host, command[1:] if command[:1] == ("--",) else command
    )


@click.command("links")
@click.argument("run", metavar="[RUN]", required=False)
@runs_option
@click.option(
    "--every",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two updates.",
)
@json_option
@handle_errors
def show_link_table(run: str | None, runs: Path, every: float, as_json: bool) -> None:
    """Show the requested, current and measured values of links.

    On a terminal the table is updated until Ctrl-C; otherwise it is printed once.
    """
    from laggard.emulate.host_shell import find_emulation
    from laggard.emulate.links_table import read_links, show_links

    folder = find_emulation(run, runs)
    if as_json:
        links = [link.model_dump(mode="json") for link in read_links(folder)]
        print_text(json.dumps(links, indent=2))
    else:
        show_links(folder, every)


@click.command(
    "trace", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("traces"),
    show_default=True,
    help="Folder of the traces, one per rank.",
)
@click.option(
    "--skip",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="First steps that are not recorded.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Steps that are recorded.",
)
@handle_errors
def trace_program(command: tuple[str, ...], out: Path, skip: int, steps: int) -> None:
    """Run a COMMAND that trains with PyTorch, and record its steps.

    Neither the program nor its launcher is changed. Each process in which an optimizer of PyTorch
    makes steps writes a profile of torch.profiler, which `laggard analyze` reads. A step ends with
    that of the optimizer. Options must precede COMMAND.
    """
    from laggard.analysis.formats.kineto.recording.run_traced import TracedSteps, run_traced

    words = command[1:] if command[:1] == ("--",) else command
    run_traced(words, TracedSteps(out, skip, steps))
