"""Commands that make many runs: `campaign`, `evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laggard.cli.error_handling import handle_errors
from laggard.cli.options import fidelity_option, json_option, runs_option
from laggard.core.errors import InputError

if TYPE_CHECKING:
    from laggard.run_folder.fidelity_checks import FidelityPolicy


@click.command("campaign")
@click.argument("file", type=click.Path(path_type=Path))
@runs_option
@fidelity_option
@handle_errors
def start_campaign(file: Path, runs: Path, fidelity: FidelityPolicy) -> int:
    """Run a scenario at every combination of what a campaign file varies; started again, it does
    what is not done yet.
    """
    from laggard.campaign.sweep import format_combination, run_campaign

    table, failed = run_campaign(
        file,
        runs,
        lambda combination, row: click.echo(format_combination(combination, row)),
        fidelity,
    )
    click.echo(f"results: {table}")
    return 1 if failed else 0


@click.command("evaluate")
@click.option("--full", is_flag=True, help="Try the whole grid, which takes hours.")
@click.option(
    "--cases", type=click.IntRange(min=1), metavar="N", help="Try so many cases of the grid."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="S",
    help="What the grid is drawn from.",
)
@click.option(
    "--emulated",
    is_flag=True,
    help="Try real runs on an emulated continuum instead of generated ones.",
)
@runs_option
@json_option
@handle_errors
def evaluate_analysis(
    full: bool, cases: int | None, seed: int, emulated: bool, runs: Path, as_json: bool
) -> None:
    """Hold the analysis against runs whose stragglers are known, and score it.

    Without an option it tries a fair sample of the grid, which takes minutes on two cores.
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
            "--full tries every generated case — leave it out, or leave out --cases and --emulated"
        )
    if emulated:
        evaluated = evaluate_emulated(EvaluationScope(cases, seed), runs, quiet=as_json)
    else:
        evaluated = evaluate_generated(
            EvaluationScope(None if full else cases or DEFAULT_CASES, seed), quiet=as_json
        )
    click.echo(
        json.dumps({"seed": seed, **build_document(evaluated)}, indent=2)
        if as_json
        else format_evaluation(evaluated)
    )
