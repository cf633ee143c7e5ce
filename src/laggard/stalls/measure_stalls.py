"""Measurement of the stalls of a scenario: plans the runs, makes them as a campaign, reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from laggard.analysis.stalls.stall_estimates import StallRuns, Stalls, estimate_stalls
from laggard.analysis.tables.load_run import load_run
from laggard.analysis.tables.timelines.step_parts import StepParts, measure_step_parts
from laggard.campaign.campaign_file import load_campaign
from laggard.campaign.campaign_state import Row, read_campaign
from laggard.campaign.run_campaign import (
    CampaignDisplay,
    CampaignOptions,
    OpenRunner,
    plan_cells,
    run_campaign,
)
from laggard.core.errors import DeploymentError, InputError
from laggard.core.files.output_files import make_folder, write_text
from laggard.core.yaml_source import to_json
from laggard.run_folder.fidelity_checks import FidelityPolicy
from laggard.run_folder.store import to_folder_name
from laggard.scenario.load import Scenario, load_scenario
from laggard.scenario.overrides import parse_override
from laggard.stalls.stall_variants import (
    ALONE,
    COLD,
    TIER,
    TOGETHER,
    WARM,
    Variant,
    list_ignored,
    plan_variants,
)

_USABLE = ("done", "unfaithful")


@dataclass(frozen=True)
class StallOptions:
    """Options of a measurement.

    Attributes:
        runs: folder of the run folders; the campaign of the short runs is in it too.
        steps: steps of each run that count, at least two.
        repeats: times that each run is made.
        name: name of the campaign's folder; `stalls-` and the scenario's name if None.
        fidelity: reaction to a failed fidelity check before training.
        run_options: further options of `laggard run`, such as `--on`.

    Examples:
        >>> StallOptions(Path("runs")).repeats
        1
    """

    runs: Path
    steps: int = 30
    repeats: int = 1
    name: str | None = None
    fidelity: FidelityPolicy = "require"
    run_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeasuredStalls:
    """Stalls of a scenario.

    Attributes:
        scenario: the scenario as it is.
        tiers: stalls of the workers of each tier, in the order of the tiers.
        hosts: stalls of the workers of each host, in rank order.
        tier_of: tier of each host.
        runs: number of runs that tell this.
        samples: samples of one worker in a step.
        folder: folder of the campaign.
        notes: sentences about what is not measured.
    """

    scenario: Scenario
    tiers: Mapping[str, Stalls]
    hosts: Mapping[str, Stalls]
    tier_of: Mapping[str, str]
    runs: int
    samples: int
    folder: Path
    notes: tuple[str, ...] = field(default=())


def measure_stalls(
    scenario_folder: Path,
    overrides: Sequence[str],
    options: StallOptions,
    display: CampaignDisplay,
    open_runner: OpenRunner,
) -> MeasuredStalls:
    """Measure the stalls of a scenario with short runs.

    Runs that an earlier call has made are used again, unless the scenario has changed.

    Args:
        scenario_folder: folder of the scenario.
        overrides: overrides of the command line.
        options: what and how often to run.
        display: display of the runs.
        open_runner: function that opens the runner of the runs (see `run_campaign`).

    Raises:
        InputError: the scenario trains nothing, or has too small batches.
        ScenarioError: the scenario is wrong.
        DeploymentError: a run failed.
    """
    scenario = load_scenario(scenario_folder, overrides)
    if not scenario.trains:
        raise InputError(
            f"{scenario_folder}: {scenario.untrained_reason} — give a scenario whose workload.yaml"
            " has a model and a dataset, or use laggard plan"
        )
    variants = plan_variants(scenario, options.steps)
    name = to_folder_name(options.name or f"stalls-{scenario.name}")
    folder = make_folder(options.runs, "campaigns", name)
    file = folder / "stalls.yaml"
    write_text(file, _write_campaign(scenario, overrides, variants, options))
    campaign = CampaignOptions(
        options.runs, name, options.fidelity, run_options=options.run_options
    )
    run_campaign(file, campaign, display, open_runner)
    repeats = [_read_repeat(found) for found in _find_runs(file, folder, options)]
    ranks, tier_of = scenario.ranks, {rank.name: rank.layer for rank in scenario.ranks}
    return MeasuredStalls(
        scenario=scenario,
        tiers={
            tier: estimate_stalls(
                repeats, frozenset(host for host, own in tier_of.items() if own == tier)
            )
            for tier in dict.fromkeys(tier_of.values())
        },
        hosts={host: estimate_stalls(repeats, frozenset((host,))) for host in tier_of},
        tier_of=tier_of,
        runs=len(variants) * options.repeats,
        samples=scenario.workload.batch_size // len(ranks),
        folder=folder,
        notes=tuple(list_ignored(scenario)),
    )


def _write_campaign(
    scenario: Scenario,
    overrides: Sequence[str],
    variants: Mapping[str, Variant],
    options: StallOptions,
) -> str:
    """Return the campaign file, as JSON, which YAML contains."""
    given = {
        each.text.partition("=")[0].strip(): to_json(each.value)
        for each in map(parse_override, overrides)
    }
    document = {
        "scenario": str(scenario.folder),
        "repeats": options.repeats,
        "order": "paired",
        "retries": 1 if options.fidelity == "require" else 0,
        # A variant has the whole workload, overrides included.
        "variants": {
            name: {
                **{key: value for key, value in given.items() if key.split(".")[0] not in variant},
                **variant,
            }
            for name, variant in variants.items()
        },
    }
    return json.dumps(document, indent=1) + "\n"


def _find_runs(
    file: Path, folder: Path, options: StallOptions
) -> Sequence[Mapping[str, StepParts]]:
    """Return the parts of the steps of every repeat's runs, by variant."""
    with read_campaign(folder) as state:
        rows = {each.digest: each.row for each in state.list_attempts()}
    found: list[dict[str, StepParts]] = [{} for _ in range(options.repeats)]
    for cell in plan_cells(load_campaign(file), options.run_options):
        row = rows.get(cell.digest, {})
        if row.get("status") not in _USABLE:
            raise DeploymentError(_describe_failure(cell.setup.variant, row, folder))
        run = load_run(Path(str(row["folder"])))
        found[cell.repeat][cell.setup.variant] = measure_step_parts(run)
    return found


def _describe_failure(variant: str, row: Row, folder: Path) -> str:
    reason = row.get("reason") or f"it is {row.get('status', 'missing')}"
    return (
        f"{folder}: the run `{variant}` did not end well: {reason} — the same command makes only"
        " the runs that are missing"
    )


def _read_repeat(found: Mapping[str, StepParts]) -> StallRuns:
    return StallRuns(
        found[ALONE],
        found[WARM],
        found[COLD],
        {name.removeprefix(TIER): parts for name, parts in found.items() if name.startswith(TIER)},
        found.get(TOGETHER),
    )
