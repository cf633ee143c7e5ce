"""Programs that the scenario of a stranger would run, and the refusal to run them unasked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from laggard.core.errors import InputError, escape_unprintable
from laggard.layers_services.e2clab.program import list_program
from laggard.scenario.load import Scenario, load_scenario
from laggard.workloads.inference_workload import InferenceWorkload
from laggard.workloads.specification.callables import is_callable_name
from laggard.workloads.specification.flower_app import FlowerApp

_MOST_LINES = 30
_MOST_CHARACTERS = 200


def require_trust(source: Path, scenario: Path, *, trusted: bool) -> None:
    """Refuse a scenario that runs programs, unless its user trusts it.

    Args:
        source: what the user gave, for the message.
        scenario: copy of the scenario's folder.
        trusted: whether `--trust` was given.

    Raises:
        InputError: the scenario would run programs and is not trusted; they are listed.
        ScenarioError: the scenario is not valid.
    """
    if trusted:
        return
    programs = list_programs(load_scenario(scenario))
    if not programs:
        return
    shown = [f"  {_shorten(each)}" for each in programs[:_MOST_LINES]]
    if len(programs) > _MOST_LINES:
        shown.append(f"  and {len(programs) - _MOST_LINES} more")
    raise InputError(
        f"{source}: this scenario runs programs with your rights, and comes from elsewhere — read"
        " them, then give --trust:\n" + "\n".join(shown)
    )


def list_programs(scenario: Scenario) -> Sequence[str]:
    """Return a line for every program that a scenario runs; nothing is imported or started."""
    return tuple(_list_programs(scenario))


def _list_programs(scenario: Scenario) -> Iterator[str]:
    sources = scenario.sources
    program = list_program(
        scenario.layers, sources.layers_services, sources.workflow, own_machines=True
    )
    for task in program.tasks:
        where = Path(task.where).name
        yield f"{where}: {task.stage} on {task.hosts}: {task.module} {task.command}"
    for each in program.classes:
        yield f"{Path(each.where).name}: {each.kind} {each.name}: {each.module}"
    if scenario.workflow.plays and not program.tasks:
        yield f"workflow.yaml: {len(scenario.workflow.plays)} plays of Ansible"
    if isinstance(scenario.application, FlowerApp):
        app = scenario.application
        yield f"workload.yaml: Flower app {app.flower}, run by {app.python}"
    for kind, name in _list_names(scenario):
        if is_callable_name(name):
            yield f"workload.yaml: {kind} {name}"


def _list_names(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield every name in `workload.yaml` that could be that of a function."""
    if scenario.trains:
        yield "model", scenario.workload.model
        yield "dataset", scenario.workload.dataset.name
    elif isinstance(scenario.application, InferenceWorkload):
        yield from (("model", name) for name in scenario.application.models)
        yield "dataset", scenario.application.dataset.name


def _shorten(line: str) -> str:
    shown = escape_unprintable(line[: _MOST_CHARACTERS + 1])
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}..."
