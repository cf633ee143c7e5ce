"""Commands that read a scenario and start nothing: `init`, `check`, `plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laggard.cli.error_handling import handle_errors, keep_own_status
from laggard.cli.options import json_option, scenario_and_plays, set_option
from laggard.cli.testbed_options import TargetTestbed, testbed_options
from laggard.core.text.terminal_output import print_text

if TYPE_CHECKING:
    from laggard.layers_services.e2clab.play_inputs import PlayInputs


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path))
@keep_own_status
@handle_errors
def init_scenario(folder: Path) -> None:
    """Create a new scenario from a commented template."""
    from laggard.scenario.scaffold import write_scenario_template

    write_scenario_template(folder)
    print_text(f"created the scenario {folder}; edit its five files, then: laggard check {folder}")


@click.command("check")
@scenario_and_plays
@set_option
@json_option
@handle_errors
def check_scenario(
    scenario: Path, plays: PlayInputs, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Validate a scenario without starting anything."""
    from laggard.scenario.emulation_limits import list_emulation_limits
    from laggard.scenario.load import load_scenario

    loaded = load_scenario(scenario, overrides, plays=plays)
    warnings = (*loaded.warnings, *list_emulation_limits(loaded))
    if as_json:
        print_text(
            json.dumps(
                {
                    "scenario": loaded.name,
                    "hosts": len(loaded.hosts),
                    "trains": loaded.trains,
                    "warnings": list(warnings),
                }
            )
        )
        return
    for warning in warnings:
        print_text(f"warning: {warning}", err=True)
    count = len(warnings)
    verdict = f"{count} warning{'s' * (count > 1)}, no errors" if count else "no errors"
    work = "" if loaded.trains else f"{loaded.untrained_reason}; "
    print_text(f"{loaded.name}: {len(loaded.hosts)} hosts, {work}{verdict}")


@click.command("plan")
@scenario_and_plays
@set_option
@json_option
@handle_errors
@testbed_options
def plan_scenario(
    scenario: Path,
    plays: PlayInputs,
    overrides: tuple[str, ...],
    as_json: bool,
    target: TargetTestbed,
) -> None:
    """Print the plan of a run; nothing is started or reserved."""
    from laggard.cli.testbed_options import plan_run
    from laggard.scenario.load import load_scenario

    description = plan_run(load_scenario(scenario, overrides, plays=plays), target)
    print_text(description.to_json() if as_json else description.text())
