"""The command line. Each command is a few lines over one function of another module, imported only
when it runs.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from laggard import __version__
from laggard.cli.testbed_options import TargetTestbed, testbed_options
from laggard.core.errors import EXIT_INTERRUPTED, InputError, LaggardError, ScenarioError

if TYPE_CHECKING:
    from laggard.core.run_schema import RunRecord
    from laggard.network_emulation.probe import Requested
    from laggard.run.fidelity_monitor import TimedViolation
    from laggard.run_folder.export import ExportFormat

CommandParameters = ParamSpec("CommandParameters")
CommandResult = TypeVar("CommandResult")

_NOISY_LOGGERS = ("grid5000", "stevedore", "urllib3")
"""Libraries that warn of what is retried, or of nobody's concern."""

EPILOG = (
    "Exit status: 0 done, 1 the run failed, 2 the input is wrong, 3 the emulation missed its"
    " tolerance, 130 it was interrupted."
)

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


def continuum_options(
    command: Callable[CommandParameters, CommandResult],
) -> Callable[CommandParameters, CommandResult]:
    """What every command that brings a continuum up takes, in the order of its help."""
    for option in (app_conf_option, dilation_option, links_option, runs_option, set_option):
        command = option(command)
    return command


def _handle_errors(
    command: Callable[CommandParameters, int | None],
) -> Callable[CommandParameters, None]:
    """Turn the exceptions we raise on purpose into a message and an exit status."""

    @wraps(command)
    def run(*args: CommandParameters.args, **kwargs: CommandParameters.kwargs) -> None:
        try:
            status = command(*args, **kwargs)
        except LaggardError as error:
            _print_error(error, as_json=bool(kwargs.get("as_json")))
            status = error.exit_status
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            status = EXIT_INTERRUPTED
        sys.exit(status or 0)

    return run


def _print_error(error: LaggardError, *, as_json: bool) -> None:
    if as_json:
        problems = [vars(p) for p in error.problems] if isinstance(error, ScenarioError) else []
        document = {"error": str(error), "kind": type(error).__name__, "problems": problems}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(
            f"error: {error}" if not isinstance(error, ScenarioError) else str(error), err=True
        )


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="laggard")
@click.option("-v", "--verbose", is_flag=True, help="Log what is done to standard error.")
def main(verbose: bool) -> None:
    """Train deep networks across an edge-fog-cloud continuum and name what slows them down."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s"
    )
    if not verbose:
        for name in _NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@_handle_errors
def init(folder: Path) -> None:
    """Start a new scenario from a commented one."""
    from laggard.scenario.scaffold import write_scenario_template

    write_scenario_template(folder)
    click.echo(f"{folder} is a scenario now; edit its five files, then: laggard check {folder}")


@main.command()
@scenario_argument
@set_option
@json_option
@_handle_errors
def check(scenario: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Validate a scenario; nothing is started."""
    from laggard.scenario.load import load_scenario

    loaded = load_scenario(scenario, overrides)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "scenario": loaded.name,
                    "hosts": len(loaded.hosts),
                    "warnings": list(loaded.warnings),
                }
            )
        )
        return
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    count = len(loaded.warnings)
    verdict = f"{count} warning{'s' * (count > 1)}, no error" if count else "nothing wrong"
    click.echo(f"{loaded.name}: {len(loaded.hosts)} hosts, {verdict}")


@main.command()
@scenario_argument
@set_option
@json_option
@_handle_errors
@testbed_options
def plan(scenario: Path, overrides: tuple[str, ...], as_json: bool, target: TargetTestbed) -> None:
    """Print what a run would do; nothing is started or reserved."""
    from laggard.cli.testbed_options import plan_run
    from laggard.scenario.load import load_scenario

    description = plan_run(load_scenario(scenario, overrides), target)
    click.echo(description.to_json() if as_json else description.text())


@main.command()
@scenario_argument
@continuum_options
@json_option
@_handle_errors
@testbed_options
def run(
    scenario: Path,
    overrides: tuple[str, ...],
    runs: Path,
    target: TargetTestbed,
    links: Requested,
    dilation: float | None,
    app_conf: str | None,
    as_json: bool,
) -> int:
    """Bring the continuum up, verify it, train, collect and analyse."""
    from laggard.scenario.load import load_scenario

    loaded = load_scenario(scenario, overrides)
    if target.testbed == "local":
        from laggard.run.runner import RunOptions, run_local

        options = RunOptions(
            runs,
            links=links,
            dilation=dilation,
            quiet=as_json,
            command=tuple(sys.argv),
            app_conf=app_conf,
        )
        record, folder = run_local(loaded, options)
    else:
        from laggard.remote.run import run_remote

        _require_remote_options(links, dilation)
        record, folder = run_remote(loaded, target.remote_options(runs, app_conf, quiet=as_json))
    _print_result(record, folder, as_json=as_json)
    return _get_exit_status(record)


def _require_remote_options(links: Requested, dilation: float | None) -> None:
    if links == "userspace":
        raise InputError(
            "--links userspace: real machines are shaped by their own kernels — leave it out, or"
            " run --on local"
        )
    if dilation not in (None, 1.0):
        raise InputError(
            f"--dilation {dilation:g}: real machines run in real time — leave it out, or run --on"
            " local"
        )


def _get_exit_status(record: RunRecord) -> int:
    return {"done": 0, "unfaithful": 3, "interrupted": EXIT_INTERRUPTED}.get(record.status, 1)


def _print_result(record: RunRecord, folder: Path, *, as_json: bool) -> None:
    from laggard.run_folder.results import build_result_document, format_run_result

    if as_json:
        click.echo(json.dumps(build_result_document(record, folder), indent=2))
    else:
        click.echo(format_run_result(record, folder))


@main.command()
@scenario_argument
@continuum_options
@click.option(
    "--for",
    "duration",
    metavar="TIME",
    help="End after so long, such as 10min; without it, at Ctrl-C.",
)
@json_option
@_handle_errors
def emulate(
    scenario: Path,
    overrides: tuple[str, ...],
    runs: Path,
    links: Requested,
    dilation: float | None,
    app_conf: str | None,
    duration: str | None,
    as_json: bool,
) -> int:
    """Bring only the continuum up, verified, for programs of your own; no workload.yaml is needed.

    `laggard ssh HOST` runs them in its hosts, `laggard links` shows its links. Where the emulation
    slips meanwhile, it says so at once, and ends with status 3. With --json it answers a line each:
    when it is up, when something has slipped, and when it has ended.
    """
    from laggard.emulate.emulation import EmulationCallbacks
    from laggard.emulate.emulation import emulate as keep_up
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
        click.echo(json.dumps(build_status_document(up)) if as_json else format_status(up))

    def print_violations(violations: Sequence[TimedViolation]) -> None:
        click.echo(
            json.dumps(build_violations_document(violations))
            if as_json
            else format_violations(violations),
            err=not as_json,
        )

    loaded = load_scenario(scenario, overrides, training=False)
    for warning in () if as_json else loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    options = RunOptions(
        runs,
        links=links,
        dilation=dilation,
        quiet=as_json,
        command=tuple(sys.argv),
        app_conf=app_conf,
    )
    record, folder = keep_up(
        loaded,
        options,
        EmulationCallbacks(print_status, print_violations),
        _parse_duration(duration),
    )
    if as_json:
        click.echo(json.dumps({**record.model_dump(mode="json"), "folder": str(folder)}))
    else:
        _print_result(record, folder, as_json=False)
    return _get_exit_status(record)


def _parse_duration(duration: str | None) -> float | None:
    from laggard.core.units import parse_duration_s

    if duration is None:
        return None
    try:
        return parse_duration_s(duration)
    except ValueError as error:
        raise InputError(f"--for {duration}: {error}") from error


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--run", metavar="RUN", help="The emulation, where several are up: its run folder or id."
)
@runs_option
@_handle_errors
def ssh(host: str, command: tuple[str, ...], run: str | None, runs: Path) -> int:
    """Open a shell in a host of a running emulation, or run a COMMAND there, held to the host's CPU
    share.

    HOST is a host's name, or a pattern that only it matches. The files and the user are yours; the
    network, the host name and the processes are the continuum's. Options come before HOST.
    """
    from laggard.emulate.host_shell import find_emulation, run_in_host

    return run_in_host(
        find_emulation(run, runs), host, command[1:] if command[:1] == ("--",) else command
    )


@main.command(name="links")
@click.argument("run", metavar="[RUN]", required=False)
@runs_option
@click.option(
    "--every",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@json_option
@_handle_errors
def links_command(run: str | None, runs: Path, every: float, as_json: bool) -> None:
    """Show the links of a running emulation: what was asked for, what holds now, what is measured.

    On a terminal the table lives until Ctrl-C; elsewhere it is printed once.
    """
    from laggard.emulate.host_shell import find_emulation
    from laggard.emulate.links_table import read_links, show_links

    folder = find_emulation(run, runs)
    if as_json:
        click.echo(json.dumps(read_links(folder), indent=2))
    else:
        show_links(folder, every)


@main.command(name="runs")
@runs_option
@json_option
@_handle_errors
def runs_command(runs: Path, as_json: bool) -> None:
    """List the runs there are, the newest last."""
    from laggard.run_folder.results import build_run_list, format_run_list
    from laggard.run_folder.store import list_runs

    listed = list_runs(runs)
    click.echo(json.dumps(build_run_list(listed), indent=2) if as_json else format_run_list(listed))


@main.command()
@click.argument("run", metavar="RUN")
@runs_option
@json_option
@_handle_errors
def report(run: str, runs: Path, as_json: bool) -> None:
    """Analyse a run again and rewrite its findings, figures and report.

    RUN is a run folder, a run's id or the beginning of one, or a scenario's name for its latest
    run.
    """
    from laggard.run_folder.analyze import analyze_folder
    from laggard.run_folder.store import find_run, load_record

    folder = find_run(run, runs)
    analyze_folder(folder)
    _print_result(load_record(folder), folder, as_json=as_json)


@main.command()
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
    "--instead",
    multiple=True,
    metavar="STRATEGY",
    help=(
        "Also say how long the same work would have taken by another strategy: a name, {name:"
        " local_sgd, steps: 4}, or all."
    ),
)
@json_option
@_handle_errors
def analyze(
    path: Path,
    out: Path | None,
    runs: Path,
    reference: str | None,
    instead: tuple[str, ...],
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

    parse_strategies(instead)
    folder = analyze_path(path, out, runs, reference=reference is not None)
    document, text = build_analysis_document(folder), format_analysis(folder)
    if instead:
        estimates, estimates_text = estimate_strategies(folder, instead)
        document, text = {**document, "instead": estimates}, f"{text}\n{estimates_text}"
    click.echo(json.dumps(document, indent=2) if as_json else text)


@main.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["perfetto", "bytedance", "csv"]),
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
@_handle_errors
def export(run: str, kind: ExportFormat, out: Path | None, runs: Path, as_json: bool) -> None:
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


@main.command()
@click.argument("run", metavar="RUN...", nargs=-1, required=True)
@runs_option
@json_option
@_handle_errors
def compare(run: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """Hold runs against each other: makespan, where the time went, what was found.

    RUN is a run folder, a run's id or the beginning of one, or a scenario's name for its latest
    run. Runs that differ in their seeds alone are repeats, and give confidence intervals (95 %);
    other setups are held against that of the first.
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


@main.command()
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
@_handle_errors
def evaluate(
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


@main.command()
@click.argument("run", metavar="[RUN]", required=False)
@runs_option
@json_option
@_handle_errors
def destroy(run: str | None, runs: Path, as_json: bool) -> int:
    """Give back what a killed run left on a remote testbed.

    RUN is a run folder, a run's id or the beginning of one; without it, all runs of the runs
    folder.
    """
    from laggard.remote.destroy import destroy_run, destroy_runs
    from laggard.run_folder.store import find_run

    report = destroy_run(find_run(run, runs)) if run else destroy_runs(runs)
    click.echo(report.to_json() if as_json else report.text())
    return 1 if report.held else 0


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@runs_option
@_handle_errors
def campaign(file: Path, runs: Path) -> int:
    """Run a scenario at every combination of what a campaign file varies; started again, it does
    what is not done yet.
    """
    from laggard.campaign.sweep import format_combination, run_campaign

    table, failed = run_campaign(
        file, runs, lambda combination, row: click.echo(format_combination(combination, row))
    )
    click.echo(f"results: {table}")
    return 1 if failed else 0


if __name__ == "__main__":
    main()
