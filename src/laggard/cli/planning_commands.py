"""Commands that choose before a run: machines, devices, and who computes what of a model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import json_option, scenario_argument, set_option
from laggard.core.text.terminal_output import print_text

if TYPE_CHECKING:
    from laggard.predict.recommendation.choice import Budget


@click.command("recommend")
@scenario_argument
@click.option(
    "--within",
    required=True,
    metavar="TIME",
    help="Longest time of the training, such as 6h or 30min.",
)
@click.option(
    "--cost-below",
    type=float,
    metavar="PRICE",
    help="Largest cost of the training, in the unit of the prices; by default any.",
)
@click.option(
    "--prices",
    required=True,
    metavar="FILE|g5k",
    help="CSV with SkyPilot's columns, or g5k for the nodes of Grid'5000 by node-hours.",
)
@click.option("--region", metavar="NAME", help="Region of the prices, or site of Grid'5000.")
@click.option("--spot", is_flag=True, help="Take the prices of machines that may be revoked.")
@click.option(
    "--workers",
    metavar="[TIER=]NUMBERS",
    help=(
        "Tier that the machines replace, and their numbers, such as edge=1..16; by default 1 to 16."
    ),
)
@click.option(
    "--strategies",
    metavar="NAMES",
    help="Strategies to compare, such as allreduce,local_sgd; by default the scenario's.",
)
@click.option(
    "--speed",
    "speeds",
    multiple=True,
    metavar="TYPE=CORES",
    help="Known speed of a type, in cores of this machine; by default the number of its cores.",
)
@click.option(
    "--measured",
    multiple=True,
    metavar="CANDIDATE=SECONDS",
    help="Measured seconds of a step of a candidate, such as c5.large:8:allreduce=0.25.",
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help="Also draw time, cost and budget to this file, .svg or .png.",
)
@set_option
@json_option
@keep_own_status
@handle_errors
def print_recommendation(
    scenario: Path,
    within: str,
    cost_below: float | None,
    prices: str,
    region: str | None,
    spot: bool,
    workers: str | None,
    strategies: str | None,
    speeds: tuple[str, ...],
    measured: tuple[str, ...],
    figure: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Recommend the cheapest machines within a budget.

    Nothing is run. A few steps are measured on one core of this machine, and the training is
    simulated on every type and number of machines. The answer comes with its interval, and with the
    candidate whose measurement would help most.
    """
    from laggard.analysis.report.style.figure_file import require_figure_path
    from laggard.predict.recommendation.price_list import list_grid5000_prices, read_price_list
    from laggard.predict.recommendation.recommend_scenario import (
        RecommendationOptions,
        recommend_scenario,
    )
    from laggard.predict.recommendation.recommendation_output import (
        build_recommendation_document,
        format_recommendation,
    )
    from laggard.predict.worker_numbers import parse_worker_numbers

    if figure is not None:
        require_figure_path(figure)
    if prices == "g5k" and spot:
        raise click.UsageError("--spot: Grid'5000 has no prices of revocable nodes — leave it out")
    options = RecommendationOptions(
        budget=_read_budget(within, cost_below),
        prices=(
            list_grid5000_prices(region)
            if prices == "g5k"
            else read_price_list(Path(prices), region, spot=spot)
        ),
        numbers=None if workers is None else parse_worker_numbers(workers),
        strategies=tuple(filter(None, map(str.strip, (strategies or "").split(",")))),
        speeds=_read_values("--speed", speeds),
        measured=_read_values("--measured", measured),
    )
    recommendation = recommend_scenario(scenario, overrides, options)
    if figure is not None:
        from laggard.predict.recommendation.recommendation_figure import (
            save_recommendation_figure,
        )

        save_recommendation_figure(recommendation, figure)
    print_text(
        json.dumps(build_recommendation_document(recommendation), indent=2)
        if as_json
        else format_recommendation(recommendation)
    )


def _read_budget(within: str, cost_below: float | None) -> Budget:
    from laggard.core.units import parse_duration_s
    from laggard.predict.recommendation.choice import Budget

    example = "write for example --within 6h"
    try:
        within_s = parse_duration_s(within)
    except ValueError as error:
        raise click.UsageError(f"--within {within}: {error} — {example}") from error
    if within.strip()[-1:].isdigit():
        raise click.UsageError(f"--within {within}: has no unit (s, min or h) — {example}")
    if within_s <= 0:
        raise click.UsageError(f"--within {within}: leaves no time — {example}")
    if cost_below is not None and not 0 < cost_below < math.inf:
        raise click.UsageError(
            f"--cost-below {cost_below:g}: must be a number above 0 — write for example"
            " --cost-below 20"
        )
    return Budget(within_s, math.inf if cost_below is None else cost_below)


def _read_values(option: str, texts: Iterable[str]) -> dict[str, float]:
    """Read pairs of a name and a positive number."""
    values: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name or not 0 < value < math.inf:
            raise click.UsageError(
                f"{option} {text}: must be a name, = and a number above 0, such as {option}"
                " c5.large=2"
            )
        if name in values:
            raise click.UsageError(f"{option} {name}: is given twice — leave one out")
        values[name] = value
    return values


@click.command("place")
@click.argument("topology", type=click.Path(path_type=Path))
@click.option(
    "--devices",
    "sizes",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Number of devices of a job, again and again for several; by default two to all.",
)
@click.option(
    "--free",
    multiple=True,
    metavar="NAME",
    help="Device that may be used, again and again for several; by default all.",
)
@json_option
@keep_own_status
@handle_errors
def print_placement(
    topology: Path, sizes: tuple[int, ...], free: tuple[str, ...], as_json: bool
) -> None:
    """Choose the devices of a machine with the fastest links.

    TOPOLOGY is hwloc's XML, the output of nvidia-smi topo -m, a CSV of rates in GB/s, or the folder
    of a run, whose hosts are the devices. The devices of a job and their order form a ring whose
    slowest link is as fast as possible.
    """
    from laggard.jobs.place_devices import (
        build_placement_document,
        format_placement,
        place_devices,
    )
    from laggard.jobs.topology_file import read_topology

    placement = place_devices(read_topology(topology), sizes, free)
    print_text(
        json.dumps(build_placement_document(placement), indent=2)
        if as_json
        else format_placement(placement)
    )


@click.command("plan-model")
@scenario_argument
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the plan to this file, such as my-continuum/plan.yaml.",
)
@click.option(
    "--prove",
    metavar="TIME",
    help="Also search for a better plan and a proof for so long, such as 10s; needs laggard[plan].",
)
@click.option(
    "--evaluations",
    type=click.IntRange(min=1),
    default=4000,
    show_default=True,
    help="Largest number of plans that are simulated.",
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help="Also draw who does what in a step to this file, .svg or .png.",
)
@set_option
@json_option
@keep_own_status
@handle_errors
def print_model_plan(
    scenario: Path,
    output: Path | None,
    prove: str | None,
    evaluations: int,
    figure: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Plan which hosts compute which part of a model.

    Nothing is run. The model is divided into blocks, which are measured on one core of this
    machine. Each block is placed on one host, or on several that average its gradients.
    """
    from laggard.analysis.report.style.figure_file import require_figure_path
    from laggard.core.units import parse_duration_s
    from laggard.predict.planning.model_plan import PlanModelOptions, plan_model
    from laggard.predict.planning.model_plan_output import (
        build_model_plan_document,
        format_planned_model,
    )
    from laggard.workloads.planning.plan_file import build_plan_file, write_plan

    if figure is not None:
        require_figure_path(figure)
    try:
        prove_s = 0.0 if prove is None else parse_duration_s(prove)
    except ValueError as error:
        raise click.UsageError(f"--prove {prove}: {error}") from error
    planned = plan_model(scenario, overrides, PlanModelOptions(evaluations, prove_s))
    if output is not None:
        write_plan(output, build_plan_file(planned.problem, planned.found))
    if figure is not None:
        from laggard.predict.planning.model_plan_figure import save_model_plan_figure

        save_model_plan_figure(planned, figure)
    print_text(
        json.dumps(build_model_plan_document(planned), indent=2)
        if as_json
        else format_planned_model(planned)
    )
