"""Commands that know before a run: `predict`, `calibrate`, `knee`, `simulate`, `schedule`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import (
    json_option,
    recorded_option,
    runs_option,
    scenario_argument,
    set_option,
)
from laggard.cli.testbed_options import TargetTestbed, optional_testbed_options
from laggard.core.errors import InputError
from laggard.core.text.terminal_output import print_text

if TYPE_CHECKING:
    from laggard.jobs.cluster_file import SharedCluster
    from laggard.jobs.execute_jobs import RoundExecutor
    from laggard.jobs.schedule_jobs import ExecutedSchedule
    from laggard.predict.revocable import RevocationOptions


_figure_option = click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help=(
        "Also draw speed and efficiency by number of workers to this file, .svg or .png, with the"
        " runs of --from."
    ),
)


@click.command("predict")
@scenario_argument
@click.option(
    "--workers",
    metavar="[TIER=]NUMBERS",
    help="Predict for several numbers of hosts of a tier, such as edge=1..64 or edge=4,8,16.",
)
@click.option(
    "--samples-per-worker",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Let the batch grow with the workers (weak scaling); by default the batch stays.",
)
@recorded_option()
@click.option(
    "--lifetimes",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Predict the end on machines that may be revoked, from a CSV of lives: hours, censored.",
)
@click.option(
    "--restart",
    "restart",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Time from a revocation until training goes on, with --lifetimes.",
)
@click.option(
    "--checkpoint-time",
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Time that a checkpoint takes, with --lifetimes.",
)
@_figure_option
@set_option
@runs_option
@json_option
@keep_own_status
@handle_errors
def print_prediction(
    scenario: Path,
    workers: str | None,
    samples_per_worker: int | None,
    recorded: tuple[str, ...],
    lifetimes: Path | None,
    restart: str,
    checkpoint_time: str,
    figure: Path | None,
    overrides: tuple[str, ...],
    runs: Path,
    as_json: bool,
) -> None:
    """Predict the speed, cost and limit of a scenario.

    Nothing is run. A few steps of the model are measured on one core of this machine. The training
    is then simulated on the hosts and links of the scenario, by the rule of its strategy.
    """
    from laggard.predict.forecast_output import build_prediction_document, format_prediction
    from laggard.predict.predict_scenario import PredictionOptions, predict_scenario
    from laggard.run_folder.recovery import find_collected_run

    _require_figure(figure)
    folders = tuple(find_collected_run(each, runs) for each in recorded)
    revocations = _read_revocations(lifetimes, restart, checkpoint_time)
    prediction = predict_scenario(
        scenario, overrides, PredictionOptions(workers, samples_per_worker, folders, revocations)
    )
    if figure is not None:
        from laggard.predict.scaling.scaling_curve import build_predicted_curve
        from laggard.predict.scaling.scaling_figure import save_scaling_figure

        save_scaling_figure(build_predicted_curve(prediction, folders), figure)
    print_text(
        json.dumps(build_prediction_document(prediction), indent=2)
        if as_json
        else format_prediction(prediction)
    )


def _require_figure(figure: Path | None) -> None:
    from laggard.analysis.report.style.figure_file import require_figure_path

    if figure is not None:
        require_figure_path(figure)


def _read_revocations(
    lifetimes: Path | None, restart: str, checkpoint_time: str
) -> RevocationOptions | None:
    from laggard.core.revocation.lifetimes_file import read_lifetimes
    from laggard.core.units import parse_duration_s
    from laggard.predict.revocable import RevocationOptions

    seconds = {}
    for option, text in (("--restart", restart), ("--checkpoint-time", checkpoint_time)):
        try:
            seconds[option] = parse_duration_s(text)
        except ValueError as error:
            raise click.UsageError(f"{option} {text}: {error}") from error
    if lifetimes is None:
        return None
    return RevocationOptions(
        read_lifetimes(lifetimes), seconds["--checkpoint-time"], seconds["--restart"]
    )


@click.command("calibrate")
@scenario_argument
@click.option(
    "--step",
    required=True,
    metavar="TIME",
    help="Time that a step of the workload takes on the device, such as 120ms.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Samples of this step; by default those of a worker's usual step.",
)
@set_option
@json_option
@handle_errors
def print_calibrated_share(
    scenario: Path, step: str, samples: int | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Find the CPU share that is as fast as a device.

    One step was measured on the device; the same one is measured here, which takes a second.
    """
    from laggard.core.units import parse_duration_s
    from laggard.predict.calibrated_share import calibrate_share
    from laggard.scenario.load import load_scenario

    try:
        device_s = parse_duration_s(step)
    except ValueError as error:
        raise click.UsageError(f"--step {step}: {error}") from error
    found = calibrate_share(load_scenario(scenario, overrides), device_s, samples)
    print_text(json.dumps({**found.build_document()}, indent=2) if as_json else found.format())


@click.command("knee")
@click.argument("speeds", type=click.Path(path_type=Path))
@click.option(
    "--workers",
    default="1..16",
    show_default=True,
    metavar="NUMBERS",
    help="Numbers of workers to predict, such as 1..64 or 4,8,16.",
)
@click.option(
    "--service",
    metavar="TIME",
    help="Time of the server for one step of one worker, such as 25ms, if it is known.",
)
@json_option
@handle_errors
def print_server_knee(speeds: Path, workers: str, service: str | None, as_json: bool) -> None:
    """Predict how many workers fill a parameter server.

    SPEEDS is a CSV with the columns workers and steps_per_s: measured steps per second of all
    workers together. A closed queue is fitted to them.
    """
    from laggard.core.units import parse_duration_s
    from laggard.predict.scaling.server_knee import predict_server_knee
    from laggard.predict.worker_numbers import parse_worker_numbers

    wanted = parse_worker_numbers(workers)
    if wanted.tier is not None:
        raise click.UsageError(f"--workers {workers}: speeds have no tiers — write 1..64")
    try:
        service_s = None if service is None else parse_duration_s(service)
    except ValueError as error:
        raise click.UsageError(f"--service {service}: {error}") from error
    found = predict_server_knee(speeds, wanted.numbers, service_s)
    print_text(json.dumps(found.build_document(), indent=2) if as_json else found.format())


@click.command("simulate")
@scenario_argument
@click.option(
    "--scale",
    "scales",
    multiple=True,
    required=True,
    metavar="TIER=NUMBERS",
    help="Number of workers of a tier, such as edge=1000000, or several: edge=1000,1000000.",
)
@click.option(
    "--steps", type=int, default=100, show_default=True, help="Number of steps to simulate."
)
@click.option(
    "--spread",
    type=float,
    help=(
        "Standard deviation of the logarithm of a step's duration, such as 0.3; by default that of"
        " the measured steps."
    ),
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed.")
@recorded_option()
@_figure_option
@set_option
@runs_option
@json_option
@keep_own_status
@handle_errors
def print_simulation(
    scenario: Path,
    scales: tuple[str, ...],
    steps: int,
    spread: float | None,
    seed: int,
    recorded: tuple[str, ...],
    figure: Path | None,
    overrides: tuple[str, ...],
    runs: Path,
    as_json: bool,
) -> None:
    """Simulate a scenario with up to millions of workers.

    Nothing is run. Every worker keeps its samples of a step, its share of a core and its links. The
    server and the links that all share stay as they are.
    """
    from laggard.predict.simulation.simulate_scenario import (
        SimulationOptions,
        parse_scales,
        simulate_scenario,
    )
    from laggard.predict.simulation.simulation_output import (
        build_simulation_document,
        format_simulation,
    )
    from laggard.run_folder.recovery import find_collected_run

    _require_figure(figure)
    folders = tuple(find_collected_run(each, runs) for each in recorded)
    options = SimulationOptions(steps, spread, seed, folders)
    simulated = simulate_scenario(scenario, overrides, parse_scales(scales), options)
    if figure is not None:
        from laggard.predict.scaling.scaling_curve import build_simulated_curve
        from laggard.predict.scaling.scaling_figure import save_scaling_figure

        save_scaling_figure(build_simulated_curve(simulated, folders), figure)
    print_text(
        json.dumps(build_simulation_document(simulated), indent=2)
        if as_json
        else format_simulation(simulated)
    )


@click.command("schedule")
@click.argument("cluster", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help=(
        "Policy that shares the devices, again and again to compare several, or all; by default"
        " that of the cluster file."
    ),
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help="Also draw who runs where, and the completion times, to this file, .svg or .png.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a page with the figure and all jobs to this file, .html.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="With --on: first measure the speed of each job, in one turn on each type of device.",
)
@runs_option
@json_option
@keep_own_status
@handle_errors
@optional_testbed_options
def print_schedules(
    cluster: Path,
    policies: tuple[str, ...],
    figure: Path | None,
    report: Path | None,
    measure: bool,
    target: TargetTestbed | None,
    runs: Path,
    as_json: bool,
) -> None:
    """Simulate or run jobs that share unequal devices.

    The devices and the jobs of the cluster file, or of a trace, are simulated in rounds under one
    policy or several. With --on, the workloads are also run, under the first policy.
    """
    from laggard.jobs.cluster_file import load_cluster
    from laggard.jobs.schedule_jobs import execute_jobs, schedule_jobs
    from laggard.jobs.schedule_output import build_schedule_document, format_schedules
    from laggard.jobs.schedule_page import require_page_path, write_schedule_page
    from laggard.workloads.scheduling.registry import POLICIES, get_policy

    _require_figure(figure)
    if report is not None:
        require_page_path(report)
    found = load_cluster(cluster)
    names = tuple(POLICIES) if policies == ("all",) else policies
    if target is not None:
        policy = [*map(get_policy, names), found.policy][0]
        executor = _create_executor(found, target, runs)
        executed = execute_jobs(policy, executor, measure=measure)
        _show_execution(executor, executed, figure, report, as_json)
        return
    if measure:
        raise InputError("--measure: valid only with --on, since it runs the jobs; omit it")
    schedules = schedule_jobs(found, [get_policy(name) for name in names] or [found.policy])
    if figure is not None:
        from laggard.jobs.schedule_figure import save_schedule_figure

        save_schedule_figure(found, schedules, figure)
    if report is not None:
        write_schedule_page(found, schedules, report)
    print_text(
        json.dumps(build_schedule_document(found, schedules), indent=2)
        if as_json
        else format_schedules(found, schedules)
    )


def _create_executor(cluster: SharedCluster, target: TargetTestbed, runs: Path) -> RoundExecutor:
    from laggard.jobs.execute_jobs import RoundExecutor
    from laggard.run_folder.store import new_run_id

    folder = runs / "schedules" / f"{cluster.name}-{new_run_id()}"
    return RoundExecutor(
        cluster, folder, runs, lambda line: click.echo(line, err=True), target.arguments
    )


def _show_execution(
    executor: RoundExecutor,
    executed: ExecutedSchedule,
    figure: Path | None,
    report: Path | None,
    as_json: bool,
) -> None:
    from laggard.core.files.output_files import write_json
    from laggard.jobs.schedule_figure import save_schedule_figure
    from laggard.jobs.schedule_output import build_execution_document, format_execution
    from laggard.jobs.schedule_page import write_schedule_page

    cluster, folder = executor.cluster, executor.folder
    document = build_execution_document(cluster, executed)
    write_json(folder / "schedule.json", document)
    both = (executed.executed, executed.simulated)
    page = report or folder / "schedule.html"
    write_schedule_page(cluster, both, page, executed)
    if figure is not None:
        save_schedule_figure(cluster, both, figure)
    if as_json:
        print_text(json.dumps(document, indent=2))
    else:
        print_text(format_execution(cluster, executed))
        print_text(f"schedule: {folder / 'schedule.json'}, {page}")
