"""Command that measures where the time of a training goes: `stalls`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import (
    dilation_option,
    fidelity_option,
    json_option,
    links_option,
    runs_option,
    scenario_argument,
    set_option,
)
from laggard.cli.testbed_options import TargetTestbed, testbed_options
from laggard.core.text.terminal_output import print_text

if TYPE_CHECKING:
    from laggard.run_folder.fidelity_checks import FidelityPolicy


@click.command("stalls")
@scenario_argument
@click.option(
    "--steps",
    type=click.IntRange(min=2, max=100_000),
    default=30,
    show_default=True,
    help="Steps of each run that count; a few more warm up.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1, max=100),
    default=1,
    show_default=True,
    help="Times that each run is made; the intervals come from the repeats if there are several.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Name of the campaign's folder; runs that are in it already are not made again.",
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help="Also draw the parts of a step to this file, .svg or .png.",
)
@set_option
@runs_option
@fidelity_option
@dilation_option
@links_option
@json_option
@keep_own_status
@handle_errors
@testbed_options
def print_stalls(
    scenario: Path,
    steps: int,
    repeats: int,
    name: str | None,
    figure: Path | None,
    overrides: tuple[str, ...],
    runs: Path,
    fidelity: FidelityPolicy,
    dilation: float | None,
    links: str,
    as_json: bool,
    target: TargetTestbed,
) -> None:
    """Measure what delays the workers of each tier.

    Short runs that differ in one thing each are compared: every worker alone, with samples from the
    cache and from storage, the workers of each tier together, and all workers together. The
    differences are the stalls of preparing and fetching samples, of the interconnect within a tier
    and of the network.
    """
    from laggard.campaign.cell_runners.open_runner import choose_runner
    from laggard.stalls.measure_stalls import StallOptions, measure_stalls
    from laggard.stalls.stall_display import StallDisplay
    from laggard.stalls.stall_output import build_stall_document, format_stalls

    if figure is not None:
        from laggard.analysis.report.style.figure_file import require_figure_path

        require_figure_path(figure)
    run_options = [f"--links={links}", *target.arguments]
    run_options += [] if dilation is None else [f"--dilation={dilation}"]
    run_options.append("--no-report")  # What is told is the difference between runs.
    measured = measure_stalls(
        scenario,
        overrides,
        StallOptions(runs, steps, repeats, name, fidelity, tuple(run_options)),
        StallDisplay(),
        choose_runner(target.remote),
    )
    if figure is not None:
        from laggard.stalls.stall_figure import save_stall_figure

        save_stall_figure(measured, figure)
    print_text(
        json.dumps(build_stall_document(measured), indent=2) if as_json else format_stalls(measured)
    )
