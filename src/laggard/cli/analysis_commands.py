"""Commands that analyze, export and compare traces: `report`, `analyze`, `export`, `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from laggard.analysis.formats.export.registry import EXPORT_FORMATS
from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import json_option, runs_option
from laggard.cli.result_output import print_result
from laggard.core.text.terminal_output import print_text


@click.command("report")
@click.argument("run", metavar="RUN")
@runs_option
@json_option
@keep_own_status
@handle_errors
def report_run(run: str, runs: Path, as_json: bool) -> None:
    """Analyze a run again and rewrite its report.

    RUN is a run folder, a run's id or its beginning, or the name of a scenario, which selects its
    latest run.
    """
    from laggard.run_folder.analyze import analyze_folder
    from laggard.run_folder.recovery import find_collected_run
    from laggard.run_folder.store import load_record

    folder = find_collected_run(run, runs)
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
    help="Folder for the results; by default a new one below --runs.",
)
@runs_option
@click.option(
    "--reference",
    type=click.Choice(["bytedance"]),
    help="Also report slowdowns against another reference: ByteDance's (the mean of all ranks).",
)
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="STRATEGY",
    help=(
        "Also estimate the duration of the same work with another strategy: a name, {name:"
        " local_sgd, steps: 4}, or all."
    ),
)
@click.option(
    "--workers",
    multiple=True,
    metavar="TIER=NUMBER",
    help=(
        "Also estimate the duration of the same work with another number of workers in a tier, with"
        " the run's strategy or those of --strategy."
    ),
)
@click.option(
    "--instead", multiple=True, hidden=True, expose_value=False, callback=_refuse_old_option
)
@click.option(
    "--no-report", is_flag=True, help="Only print the findings; write no run folder and no report."
)
@json_option
@keep_own_status
@handle_errors
def analyze_trace(
    path: Path,
    out: Path | None,
    runs: Path,
    reference: str | None,
    strategies: tuple[str, ...],
    workers: tuple[str, ...],
    no_report: bool,
    as_json: bool,
) -> None:
    """Find the stragglers in a trace and write a report.

    PATH is a run folder, a ByteDance StragglerAnalysis trace (.parquet), a Horovod timeline
    (.json), or a folder of torch.profiler traces or of flight recorder dumps, one file per rank
    (.json, .json.gz). If no such path exists, it is a run's id or a scenario's name, as for the
    other commands. The results form a run folder that every command can read. If PATH is a run
    folder, they are written into it.
    """
    from laggard.run_folder.analyze import analyze_path
    from laggard.run_folder.recovery import find_collected_run, recover_run
    from laggard.run_folder.results import build_analysis_document, format_analysis
    from laggard.run_folder.strategy_estimates import (
        estimate_strategies,
        parse_strategies,
        parse_workers,
    )

    if no_report:
        _require_no_folder(out, reference, strategies, workers)
    # An invalid value is reported before the analysis, which may take minutes.
    parse_strategies(strategies)
    parse_workers(workers)
    if path.exists():
        recover_run(path)
    else:
        path = find_collected_run(str(path), runs)
    if no_report:
        _print_summary(path, as_json=as_json)
        return
    folder = analyze_path(path, out, runs, reference=reference is not None)
    document, text = build_analysis_document(folder), format_analysis(folder)
    if strategies or workers:
        estimates, estimates_text = estimate_strategies(folder, strategies, workers)
        document, text = {**document, "strategy_estimates": estimates}, f"{text}\n{estimates_text}"
    print_text(json.dumps(document, indent=2) if as_json else text)


def _require_no_folder(
    out: Path | None,
    reference: str | None,
    strategies: tuple[str, ...],
    workers: tuple[str, ...],
) -> None:
    given = {
        "--out": out,
        "--reference": reference,
        "--strategy": strategies,
        "--workers": workers,
    }
    for option, value in given.items():
        if value:
            raise click.UsageError(
                f"{option} needs a run folder, but --no-report writes none: omit one of both"
            )


def _print_summary(path: Path, *, as_json: bool) -> None:
    from laggard.run_folder.analyze import analyze_in_memory
    from laggard.run_folder.results import build_summary_document, format_summary

    run, analysis = analyze_in_memory(path)
    if as_json:
        print_text(json.dumps(build_summary_document(run, analysis), indent=2))
    else:
        print_text(format_summary(run, analysis))


@click.command("export")
@click.argument("run", metavar="RUN")
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(EXPORT_FORMATS)),
    help="Format of the export.",
)
@click.option(
    "--crate",
    is_flag=True,
    help="Export everything about a run or a campaign as an RO-Crate, for `laggard reproduce`.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help=(
        "Output file, or folder for csv; a new folder or a .zip file for --crate; by default inside"
        " the run folder."
    ),
)
@click.option(
    "--license", "license_url", metavar="URL", help="License of the data, stated in the crate."
)
@runs_option
@json_option
@keep_own_status
@handle_errors
def write_export(
    run: str,
    kind: str | None,
    crate: bool,
    out: Path | None,
    license_url: str | None,
    runs: Path,
    as_json: bool,
) -> None:
    """Export a run for other tools, or for others to reproduce.

    RUN is a run folder, a run's id or its beginning, or the name of a scenario, which selects its
    latest run. With --crate, it can also be the folder or the name of a campaign.
    """
    from laggard.run_folder.export import export_run
    from laggard.run_folder.recovery import find_collected_run

    if crate == (kind is not None):
        raise click.UsageError("give either --format FORMAT or --crate")
    if kind is None:
        _print_crate(run, runs, out, license_url, as_json=as_json)
        return
    if license_url is not None:
        raise click.UsageError("--license belongs to --crate: omit it, or give --crate")
    exported = export_run(find_collected_run(run, runs), kind, out)
    if as_json:
        paths = [str(path) for path in exported.paths]
        print_text(json.dumps({"paths": paths, "notes": list(exported.notes)}))
        return
    for path in exported.paths:
        print_text(str(path))
    for note in exported.notes:
        print_text(f"note: {note}", err=True)


def _print_crate(
    run: str, runs: Path, out: Path | None, license_url: str | None, *, as_json: bool
) -> None:
    from laggard.crate.write_crate import write_crate

    path = write_crate(run, runs, out, license_url)
    print_text(json.dumps({"paths": [str(path)], "notes": []}) if as_json else str(path))


@click.command("compare")
@click.argument("run", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--per",
    multiple=True,
    metavar="AXIS",
    help="Compare the setups of a campaign within each value of this axis; by default scenario.",
)
@click.option(
    "--baseline",
    multiple=True,
    metavar="AXIS=VALUE",
    help="Compare the setups of a campaign with the one that has this value.",
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help="Also draw the effects in a campaign to this file, .svg or .png.",
)
@runs_option
@json_option
@handle_errors
def compare_runs(
    run: tuple[str, ...],
    per: tuple[str, ...],
    baseline: tuple[str, ...],
    figure: Path | None,
    runs: Path,
    as_json: bool,
) -> None:
    """Compare makespans and findings of runs, or a campaign's setups.

    RUN is a run folder, a run's id or its beginning, the name of a scenario, which selects its
    latest run, or a trace that `laggard analyze` reads. Runs that differ only in their seeds are
    repeats and give 95 % confidence intervals. Other setups are compared with the first one.

    A single RUN may be the folder of a campaign, or its results.parquet or results.csv. Its setups
    are compared with the first one of their scenario.
    """
    from laggard.analysis.campaign.result_table import is_result_table
    from laggard.analysis.findings.compare_folders import (
        compare_folders,
        format_comparison,
        to_comparison_document,
    )
    from laggard.run_folder.recovery import find_analyzed_run

    tables = [each for each in run if is_result_table(Path(each))]
    if tables and len(run) > 1:
        raise click.UsageError(f"{tables[0]} is a campaign: give it alone, without other runs")
    if tables:
        _compare_campaign(Path(tables[0]), per, baseline, figure, as_json=as_json)
        return
    if per or baseline or figure:
        raise click.UsageError(
            "--per, --baseline and --figure need a campaign: give its folder, such as"
            " runs/campaigns/NAME"
        )
    setups, left_out = compare_folders([find_analyzed_run(each, runs) for each in run])
    print_text(
        json.dumps(to_comparison_document(setups, left_out), indent=2)
        if as_json
        else format_comparison(setups, left_out)
    )


def _compare_campaign(
    table: Path,
    per: tuple[str, ...],
    baseline: tuple[str, ...],
    figure: Path | None,
    *,
    as_json: bool,
) -> None:
    from laggard.analysis.campaign.campaign_comparison import (
        compare_campaign,
        parse_baseline,
        to_campaign_document,
    )
    from laggard.analysis.campaign.comparison_text import format_campaign
    from laggard.analysis.campaign.effect_figure import save_campaign_figure
    from laggard.analysis.report.style.figure_file import require_figure_path

    if figure is not None:
        require_figure_path(figure)
    compared = compare_campaign(table, per, parse_baseline(baseline))
    if figure is not None:
        save_campaign_figure(compared, figure)
    print_text(
        json.dumps(to_campaign_document(compared), indent=2)
        if as_json
        else format_campaign(compared)
    )
