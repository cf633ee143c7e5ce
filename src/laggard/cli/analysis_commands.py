"""Commands that analyze, export and compare traces: `report`, `analyze`, `export`, `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from laggard.analysis.formats.export.registry import EXPORT_FORMATS
from laggard.cli.error_handling import handle_errors
from laggard.cli.options import json_option, runs_option
from laggard.cli.result_output import print_result


@click.command("report")
@click.argument("run", metavar="RUN")
@runs_option
@json_option
@handle_errors
def report_run(run: str, runs: Path, as_json: bool) -> None:
    """Analyze a run again and rewrite its report.

    RUN is a run folder, a run's id or the beginning of one, or a scenario's name for its latest
    run.
    """
    from laggard.run_folder.analyze import analyze_folder
    from laggard.run_folder.store import find_run, load_record

    folder = find_run(run, runs)
    analyze_folder(folder)
    print_result(load_record(folder), folder, as_json=as_json)


def _refuse_old_option(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> None:
    if values:
        raise click.UsageError("--instead is now called --strategy: give --strategy STRATEGY")


@click.command("analyze")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The folder for what is found; without it, one below --runs.",
)
@runs_option
@click.option(
    "--reference",
    type=click.Choice(["bytedance"]),
    help="Tell slowdowns against another reference too: ByteDance's (the average of all).",
)
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="STRATEGY",
    help=(
        "Also say how long the same work would have taken by another strategy: a name, {name:"
        " local_sgd, steps: 4}, or all."
    ),
)
@click.option(
    "--instead", multiple=True, hidden=True, expose_value=False, callback=_refuse_old_option
)
@json_option
@handle_errors
def analyze_trace(
    path: Path,
    out: Path | None,
    runs: Path,
    reference: str | None,
    strategies: tuple[str, ...],
    as_json: bool,
) -> None:
    """Find the stragglers of any trace, and write a report.

    PATH is a run folder, a ByteDance StragglerAnalysis trace (.parquet), or torch.profiler's
    (.json, .json.gz): one file per rank, in a folder. What is found goes into a run folder that
    every command reads; a run's own folder is written into.
    """
    from laggard.run_folder.analyze import analyze_path
    from laggard.run_folder.results import build_analysis_document, format_analysis
    from laggard.run_folder.strategy_estimates import estimate_strategies, parse_strategies

    parse_strategies(strategies)
    folder = analyze_path(path, out, runs, reference=reference is not None)
    document, text = build_analysis_document(folder), format_analysis(folder)
    if strategies:
        estimates, estimates_text = estimate_strategies(folder, strategies)
        document, text = {**document, "strategy_estimates": estimates}, f"{text}\n{estimates_text}"
    click.echo(json.dumps(document, indent=2) if as_json else text)


@click.command("export")
@click.argument("run", metavar="RUN")
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(EXPORT_FORMATS)),
    required=True,
    help="For which tool.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The file, for csv the folder; without it, one in the run folder.",
)
@runs_option
@json_option
@handle_errors
def write_export(run: str, kind: str, out: Path | None, runs: Path, as_json: bool) -> None:
    """Write a run for other tools.

    RUN is a run folder, a run's id or the beginning of one, or a scenario's name for its latest
    run.
    """
    from laggard.run_folder.export import export_run
    from laggard.run_folder.store import find_run

    exported = export_run(find_run(run, runs), kind, out)
    if as_json:
        paths = [str(path) for path in exported.paths]
        click.echo(json.dumps({"paths": paths, "notes": list(exported.notes)}))
        return
    for path in exported.paths:
        click.echo(str(path))
    for note in exported.notes:
        click.echo(f"note: {note}", err=True)


@click.command("compare")
@click.argument("run", metavar="RUN...", nargs=-1, required=True)
@runs_option
@json_option
@handle_errors
def compare_runs(run: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """Compare runs: makespan, where the time went, findings.

    RUN is a run folder, a run's id or the beginning of one, or a scenario's name for its latest
    run. Runs that differ in their seeds alone are repeats, and give confidence intervals (95 %);
    other setups are compared with the first.
    """
    from laggard.analysis.findings.compare_folders import (
        compare_folders,
        format_comparison,
        to_comparison_document,
    )
    from laggard.run_folder.store import find_run

    setups, left_out = compare_folders([find_run(each, runs) for each in run])
    click.echo(
        json.dumps(to_comparison_document(setups, left_out), indent=2)
        if as_json
        else format_comparison(setups, left_out)
    )
