"""Commands that make many runs: `campaign`, `evaluate`, `verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import (
    artifacts_option,
    fidelity_option,
    json_option,
    links_option,
    runs_option,
)
from laggard.core.errors import InputError
from laggard.core.text.terminal_output import print_text

if TYPE_CHECKING:
    from laggard.evaluate.evaluation import GridName
    from laggard.run_folder.fidelity_checks import FidelityPolicy


@click.command("campaign")
@click.argument("file", type=click.Path(path_type=Path))
@runs_option
@fidelity_option
@artifacts_option
@keep_own_status
@handle_errors
def start_campaign(
    file: Path, runs: Path, fidelity: FidelityPolicy, artifacts_option: Path | None
) -> int:
    """Run every combination of the values in a campaign file.

    A repeated call makes only the runs that are missing or failed.
    """
    from laggard.campaign.sweep import format_combination, run_campaign

    table, failed = run_campaign(
        file,
        runs,
        lambda combination, row: print_text(format_combination(combination, row)),
        fidelity,
        artifacts_option,
    )
    print_text(f"results: {table}")
    return 1 if failed else 0


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
