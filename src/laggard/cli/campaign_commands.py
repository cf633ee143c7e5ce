"""Commands that make many runs: `campaign`, `evaluate`, `verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import (
    artifacts_option,
    dilation_option,
    fidelity_option,
    json_option,
    links_option,
    report_option,
    runs_option,
)
from laggard.cli.testbed_options import TargetTestbed, training_options
from laggard.core.errors import InputError
from laggard.core.text.terminal_output import print_text

if TYPE_CHECKING:
    from laggard.evaluate.evaluation import GridName
    from laggard.run_folder.fidelity_checks import FidelityPolicy


@click.command("campaign")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--name", metavar="NAME", help="Name of the campaign's folder; by default that of FILE."
)
@click.option(
    "--processes",
    type=click.IntRange(min=1, max=1000),
    metavar="N",
    help=(
        "Processes for cells that need no continuum; by default one per core. With --on ssh, those"
        " of each machine; with --on g5k, OAR jobs of one core."
    ),
)
@click.option("--dry-run", is_flag=True, help="Check all cells, show what is left, start nothing.")
@runs_option
@fidelity_option
@dilation_option
@links_option
@artifacts_option
@report_option
@json_option
@keep_own_status
@handle_errors
@training_options
def start_campaign(
    file: Path,
    name: str | None,
    processes: int | None,
    dry_run: bool,
    runs: Path,
    fidelity: FidelityPolicy,
    dilation: float | None,
    links: str,
    artifacts_option: Path | None,
    report: bool,
    as_json: bool,
    target: TargetTestbed,
) -> int:
    """Run every combination of the values in a campaign file.

    All combinations are checked before the first one runs. A repeated call makes only the runs
    that are missing or failed.
    """
    from laggard.campaign.campaign_display import CampaignJsonDisplay, CampaignTextDisplay
    from laggard.campaign.cell_runners.open_runner import choose_runner
    from laggard.campaign.run_campaign import CampaignOptions, read_progress, run_campaign
    from laggard.campaign.tasks.choose_pool import choose_pool

    run_options = [f"--links={links}", *target.arguments]
    run_options += [] if dilation is None else [f"--dilation={dilation}"]
    run_options += [] if report else ["--no-report"]
    options = CampaignOptions(
        runs,
        name,
        fidelity,
        artifacts_option,
        tuple(run_options),
        lambda: choose_pool(target.remote, processes),
        _list_given("fidelity", "links", "dilation", "artifacts_option", "report", "processes"),
    )
    if dry_run:
        progress, folder = read_progress(file, options)
        counts = {**vars(progress), "folder": str(folder)}
        print_text(json.dumps(counts) if as_json else f"{folder}: {progress.to_text()}")
        return 0
    display = CampaignJsonDisplay() if as_json else CampaignTextDisplay()
    result = run_campaign(file, options, display, choose_runner(target.remote))
    ending = {"event": "end", "stopped": result.stopped, "skipped": result.skipped}
    if as_json:
        print_text(json.dumps({**ending, **vars(result.progress), "table": str(result.table)}))
    else:
        if result.stopped:
            print_text(f"stopped early: {result.stopped}; the same command goes on")
        if result.skipped:
            print_text(f"{result.skipped} repeats were not needed, as stop.interval says")
        print_text(f"results: {result.table}, {result.table.with_name('index.html')}")
    return 1 if result.progress.failed else 0


def _list_given(*parameters: str) -> tuple[str, ...]:
    """Return those options of the current command that are on its command line."""
    context = click.get_current_context()
    given = {
        name
        for name in parameters
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return tuple(each.opts[0] for each in context.command.params if each.name in given)


@click.command("evaluate")
@click.option("--full", is_flag=True, help="Use the whole grid of cases, which takes hours.")
@click.option(
    "--cases", type=click.IntRange(min=1), metavar="N", help="Use the first N cases of the grid."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="S",
    help="Seed of the grid.",
)
@click.option(
    "--grid",
    type=click.Choice(["runs", "traces"]),
    default="runs",
    show_default=True,
    help="Grid of cases: runs of Laggard, or traces as other tools record them.",
)
@click.option(
    "--emulated",
    is_flag=True,
    help="Use real runs on an emulated continuum instead of generated ones.",
)
@runs_option
@json_option
@keep_own_status
@handle_errors
def evaluate_analysis(
    full: bool,
    cases: int | None,
    seed: int,
    grid: GridName,
    emulated: bool,
    runs: Path,
    as_json: bool,
) -> None:
    """Score the analysis on runs with known stragglers.

    Without options it uses a representative sample of the grid, which takes minutes on two cores.
    """
    from laggard.analysis.evaluate.evaluation_report import build_document, format_evaluation
    from laggard.evaluate.evaluation import (
        DEFAULT_CASES,
        EvaluationScope,
        evaluate_emulated,
        evaluate_generated,
    )

    if full and (cases or emulated):
        raise InputError(
            "--full uses every generated case and excludes --cases and --emulated — omit it, or"
            " omit them"
        )
    if emulated and grid != "runs":
        raise InputError(f"--grid {grid} has generated traces only — omit it, or --emulated")
    if emulated:
        evaluated = evaluate_emulated(EvaluationScope(cases, seed), runs, quiet=as_json)
    else:
        evaluated = evaluate_generated(
            EvaluationScope(None if full else cases or DEFAULT_CASES, seed, grid), quiet=as_json
        )
    print_text(
        json.dumps({"seed": seed, **build_document(evaluated)}, indent=2)
        if as_json
        else format_evaluation(evaluated)
    )


@click.command("verify")
@click.argument("scenario", type=click.Path(path_type=Path), required=False)
@click.option(
    "--rounds",
    type=click.IntRange(min=1, max=100),
    default=3,
    show_default=True,
    help="Number of rounds on a quiet machine; at most twice as many rounds are made in total.",
)
@links_option
@runs_option
@json_option
@keep_own_status
@handle_errors
def verify_machine(
    scenario: Path | None, rounds: int, links: str, runs: Path, as_json: bool
) -> int:
    """Measure how exactly this machine emulates.

    Each round starts a small continuum (or SCENARIO) and measures its round trips, rates, losses,
    CPU shares, drives and events. The quietness of the machine is measured before and after. The
    exit status is 0 if all medians are within their tolerances, 3 if some are not, and 1 if the
    machine was not quiet.
    """
    from laggard.verify.rounds import SCENARIO, VerificationOptions, run_rounds
    from laggard.verify.verification import judge

    options = VerificationOptions(scenario or SCENARIO, runs, links, rounds, 2 * rounds)
    done = []
    for number, each in enumerate(run_rounds(options), start=1):
        done.append(each)
        state = "quiet" if each.is_quiet else "not quiet"
        print_text(f"round {number}: {len(each.checks)} checks, machine {state}", err=True)
    result = judge(done)
    print_text(result.to_json() if as_json else result.text())
    return {"good": 0, "out of tolerance": 3, "not quiet": 1}[result.verdict]
