"""Command that shares a cluster between several jobs: `schedule`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import json_option
from laggard.core.text.terminal_output import print_text


@click.command("schedule")
@click.argument("cluster", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help=(
        "Policy that shares the devices, again and again to compare several, or all; by default that"
        " of the cluster file."
    ),
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help="Also draw who runs where, and the completion times, to this file, .svg or .png.",
)
@json_option
@keep_own_status
@handle_errors
def print_schedules(
    cluster: Path, policies: tuple[str, ...], figure: Path | None, as_json: bool
) -> None:
    """Simulate how jobs share a cluster of unequal devices.

    Nothing is run. The devices and the jobs of the cluster file, or of a trace, are simulated in
    rounds under one policy or several.
    """
    from laggard.analysis.report.style.figure_file import require_figure_path
    from laggard.jobs.cluster_file import load_cluster
    from laggard.jobs.schedule_jobs import schedule_jobs
    from laggard.jobs.schedule_output import build_schedule_document, format_schedules
    from laggard.workloads.scheduling.registry import POLICIES, get_policy

    if figure is not None:
        require_figure_path(figure)
    found = load_cluster(cluster)
    names = tuple(POLICIES) if policies == ("all",) else policies
    schedules = schedule_jobs(found, [get_policy(name) for name in names] or [found.policy])
    if figure is not None:
        from laggard.jobs.schedule_figure import save_schedule_figure

        save_schedule_figure(found, schedules, figure)
    print_text(
        json.dumps(build_schedule_document(found, schedules), indent=2)
        if as_json
        else format_schedules(found, schedules)
    )
