"""Commands that train, list runs or release them: `run`, `runs`, `destroy`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import (
    continuum_options,
    duration_option,
    json_option,
    parse_duration,
    recorded_option,
    report_option,
    runs_option,
    scenario_and_plays,
)
from laggard.cli.result_output import get_exit_status, print_result
from laggard.cli.testbed_options import TargetTestbed, training_options
from laggard.core.errors import InputError
from laggard.core.text.terminal_output import print_text
from laggard.workloads.inference_workload import InferenceWorkload
from laggard.workloads.specification.flower_app import FlowerApp

if TYPE_CHECKING:
    from laggard.layers_services.e2clab.play_inputs import PlayInputs
    from laggard.network_emulation.probe import Requested
    from laggard.run_folder.fidelity_checks import FidelityPolicy
    from laggard.scenario.load import Scenario


def _end_with_campaign(
    _context: click.Context, _parameter: click.Parameter, token: str | None
) -> None:
    from laggard.campaign.cell_runs import get_starter
    from laggard.core.linux import die_with_parent

    if token is None:
        return
    try:
        die_with_parent(get_starter(token), signal.SIGTERM)
    except ValueError as error:
        raise InputError(f"--cell: {error} — omit it") from error


@click.command("run")
@scenario_and_plays
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the training of a run that ended too early: give the run as SCENARIO.",
)
@continuum_options
@duration_option
@recorded_option("virtual: ")
@report_option
@json_option
# A campaign marks its runs, and they end with it.
@click.option("--cell", hidden=True, expose_value=False, callback=_end_with_campaign)
@keep_own_status
@handle_errors
@training_options
def run_scenario(
    scenario: Path,
    plays: PlayInputs,
    overrides: tuple[str, ...],
    runs: Path,
    target: TargetTestbed,
    links: Requested,
    dilation: float | None,
    fidelity: FidelityPolicy,
    duration: str | None,
    recorded: tuple[str, ...],
    report: bool,
    as_json: bool,
    resume: bool,
) -> int:
    """Start and verify the continuum, train, and analyze the run.

    Without a workload.yaml nothing is trained: the plays of workflow.yaml are the experiment. With
    --for TIME, it goes on for this time between launch and finalize.
    """
    from laggard.layers_services import model, validate
    from laggard.scenario.load import load_scenario

    if resume:
        loaded = _load_resumed(scenario, runs, overrides, plays, target)
    else:
        most_hosts = model.MAX_HOSTS if target.is_virtual else validate.MAX_HOSTS
        loaded = load_scenario(scenario, overrides, plays=plays, most_hosts=most_hosts)
    for_s = parse_duration(duration)
    if loaded.trains and for_s is not None:
        raise InputError(
            f"--for {duration}: workload.yaml says when training stops — omit --for, or set"
            f" workload.stop.time={duration}"
        )
    if recorded and not target.is_virtual:
        raise InputError(
            f"--from {recorded[0]}: valid only with --on virtual; elsewhere, steps are trained in"
            " their own time — omit it"
        )
    if target.is_virtual:
        from laggard.run_folder.recovery import find_collected_run
        from laggard.virtual.run_virtual import VirtualOptions, run_virtual

        _require_no_emulation(links, dilation)
        virtual = VirtualOptions(
            runs,
            quiet=as_json,
            command=tuple(sys.argv),
            report=report,
            recorded=tuple(find_collected_run(each, runs) for each in recorded),
        )
        record, folder = run_virtual(loaded, virtual)
    elif target.remote is None:
        from laggard.run.runner import RunOptions, run_local

        options = RunOptions(
            runs,
            links=links,
            dilation=dilation,
            quiet=as_json,
            command=tuple(sys.argv),
            fidelity=fidelity,
            report=report,
        )
        if loaded.trains:
            record, folder = run_local(loaded, options)
        elif isinstance(loaded.application, FlowerApp):
            from laggard.flower.run_flower import run_flower

            record, folder = run_flower(loaded, options, for_s or 0.0)
        elif isinstance(loaded.application, InferenceWorkload):
            from laggard.inference.run_inference import run_inference

            record, folder = run_inference(loaded, options, for_s or 0.0)
        else:
            from laggard.emulate.emulation import run_experiment

            record, folder = run_experiment(loaded, options, for_s or 0.0)
    else:
        from laggard.remote.provision import RemoteOptions
        from laggard.remote.run import run_remote

        _require_remote_options(links, dilation)
        if loaded.application is not None:
            raise InputError(
                f"--on {target.remote.name}: Flower apps and inferences run on emulated hosts only"
                " — run --on local"
            )
        remote_options = RemoteOptions(
            runs,
            target.remote,
            quiet=as_json,
            command=tuple(sys.argv),
            fidelity=fidelity,
            for_s=for_s or 0.0,
            report=report,
        )
        record, folder = run_remote(loaded, remote_options)
    print_result(record, folder, as_json=as_json)
    return get_exit_status(record)


def _load_resumed(
    run: Path, runs: Path, overrides: tuple[str, ...], plays: PlayInputs, target: TargetTestbed
) -> Scenario:
    """Load the scenario of a run, whose training is to go on.

    Raises:
        InputError: the run was made on another testbed, or its training cannot go on.
    """
    from laggard.run_folder.resuming.resume import find_resumed_run, load_resumed_scenario

    resumed = find_resumed_run(str(run), runs)
    made_on = resumed.record.testbed
    if not target.is_chosen and made_on != target.name:
        raise InputError(
            f"--resume {run}: this run was made on the testbed {made_on}, whose options are not"
            f" known here — give them, such as --on {made_on}, or --on {target.name}"
        )
    inputs = resumed.complete_inputs(plays, has_artifacts=plays.artifacts != run.absolute())
    return load_resumed_scenario(resumed, overrides, inputs)


def _require_no_emulation(links: Requested, dilation: float | None) -> None:
    given = [] if links == "auto" else [f"--links {links}"]
    given += [] if dilation is None else [f"--dilation {dilation:g}"]
    if given:
        raise InputError(f"{', '.join(given)}: nothing is emulated in virtual time — omit it")


def _require_remote_options(links: Requested, dilation: float | None) -> None:
    if links == "userspace":
        raise InputError(
            "--links userspace: links of real machines are emulated by their kernels — omit it, or"
            " run --on local"
        )
    if dilation not in (None, 1.0):
        raise InputError(
            f"--dilation {dilation:g}: real machines run in real time — omit it, or run --on local"
        )


@click.command("demo")
@runs_option
@json_option
@keep_own_status
@handle_errors
def run_demo(runs: Path, as_json: bool) -> int:
    """Run the quickstart scenario, which takes about three minutes.

    It emulates eight machines on this one and trains on them. The four edge devices compute four
    times slower than the cloud, and the links are temporarily slower. The report names both
    causes. On a busy machine the emulation may be out of tolerance. The run then continues, the
    report states this first, and the exit status is 3.
    """
    from importlib.resources import files

    from laggard.run.runner import RunOptions, run_local
    from laggard.scenario.load import load_scenario

    scenario = load_scenario(Path(str(files("laggard.experiments") / "quickstart")))
    # A report that states the failed checks teaches a new user more than a run that is refused.
    options = RunOptions(runs, quiet=as_json, command=tuple(sys.argv), fidelity="record")
    record, folder = run_local(scenario, options)
    print_result(record, folder, as_json=as_json)
    return get_exit_status(record)


@click.command("runs")
@runs_option
@json_option
@handle_errors
def print_runs(runs: Path, as_json: bool) -> None:
    """List all runs, the latest last."""
    from laggard.run_folder.results import build_run_list, format_run_list
    from laggard.run_folder.store import list_runs

    listed = list_runs(runs)
    print_text(json.dumps(build_run_list(listed), indent=2) if as_json else format_run_list(listed))


@click.command("destroy")
@click.argument("run", metavar="[RUN]", required=False)
@runs_option
@json_option
@keep_own_status
@handle_errors
def release_nodes(run: str | None, runs: Path, as_json: bool) -> int:
    """Release nodes that killed runs and campaigns still hold.

    RUN is a run folder, a run's id or its beginning, or a campaign's folder or name; by default
    all runs and campaigns of the runs folder.
    """
    from laggard.remote.destroy import destroy_named, destroy_runs

    # An empty RUN is a mistake, such as an unset variable, and must not mean all runs.
    report = destroy_runs(runs) if run is None else destroy_named(run, runs)
    print_text(report.to_json() if as_json else report.text())
    return 1 if report.held or report.refused else 0
