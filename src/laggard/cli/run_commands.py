"""Commands that train, and those that list or release runs: `run`, `runs`, `destroy`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laggard.cli.error_handling import handle_errors
from laggard.cli.options import continuum_options, json_option, runs_option, scenario_argument
from laggard.cli.result_output import get_exit_status, print_result
from laggard.cli.testbed_options import TargetTestbed, testbed_options
from laggard.core.errors import InputError

if TYPE_CHECKING:
    from laggard.network_emulation.probe import Requested
    from laggard.run_folder.fidelity_checks import FidelityPolicy


@click.command("run")
@scenario_argument
@continuum_options
@json_option
@handle_errors
@testbed_options
def run_scenario(
    scenario: Path,
    overrides: tuple[str, ...],
    runs: Path,
    target: TargetTestbed,
    links: Requested,
    dilation: float | None,
    app_conf: str | None,
    fidelity: FidelityPolicy,
    as_json: bool,
) -> int:
    """Bring the continuum up, verify it, train, collect and analyze."""
    from laggard.scenario.load import load_scenario

    loaded = load_scenario(scenario, overrides)
    if target.remote is None:
        from laggard.run.runner import RunOptions, run_local

        options = RunOptions(
            runs,
            links=links,
            dilation=dilation,
            quiet=as_json,
            command=tuple(sys.argv),
            app_conf=app_conf,
            fidelity=fidelity,
        )
        record, folder = run_local(loaded, options)
    else:
        from laggard.remote.provision import RemoteOptions
        from laggard.remote.run import run_remote

        _require_remote_options(links, dilation)
        remote_options = RemoteOptions(
            runs,
            target.remote,
            quiet=as_json,
            command=tuple(sys.argv),
            app_conf=app_conf,
            fidelity=fidelity,
        )
        record, folder = run_remote(loaded, remote_options)
    print_result(record, folder, as_json=as_json)
    return get_exit_status(record)


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


@click.command("demo")
@runs_option
@json_option
@handle_errors
def run_demo(runs: Path, as_json: bool) -> int:
    """Run the quickstart scenario, which takes about three minutes.

    Eight emulated machines train on this one, the four edge devices four times slower than the
    cloud, and the links slow down temporarily. The report names both. On a busy machine the
    emulation may miss its tolerances: it trains all the same, the report says so first, and the
    exit status is 3.
    """
    from importlib.resources import files

    from laggard.run.runner import RunOptions, run_local
    from laggard.scenario.load import load_scenario

    scenario = load_scenario(Path(str(files("laggard.experiments") / "quickstart")))
    # A newcomer learns more from a report that says what was missed than from a refused run.
    options = RunOptions(runs, quiet=as_json, command=tuple(sys.argv), fidelity="record")
    record, folder = run_local(scenario, options)
    print_result(record, folder, as_json=as_json)
    return get_exit_status(record)


@click.command("runs")
@runs_option
@json_option
@handle_errors
def print_runs(runs: Path, as_json: bool) -> None:
    """List the runs there are, the newest last."""
    from laggard.run_folder.results import build_run_list, format_run_list
    from laggard.run_folder.store import list_runs

    listed = list_runs(runs)
    click.echo(json.dumps(build_run_list(listed), indent=2) if as_json else format_run_list(listed))


@click.command("destroy")
@click.argument("run", metavar="[RUN]", required=False)
@runs_option
@json_option
@handle_errors
def release_nodes(run: str | None, runs: Path, as_json: bool) -> int:
    """Release what a killed run left on a testbed.

    RUN is a run folder, a run's id or the beginning of one; without it, all runs of the runs
    folder.
    """
    from laggard.remote.destroy import destroy_run, destroy_runs
    from laggard.run_folder.store import find_run

    report = destroy_run(find_run(run, runs)) if run else destroy_runs(runs)
    click.echo(report.to_json() if as_json else report.text())
    return 1 if report.held else 0
