"""The plan of a model that `workload.yaml` names, for the hosts of the scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import InputError, ScenarioError
from laggard.core.hosts import Host
from laggard.core.yaml_source import KeyPath, YamlSource, parse_yaml
from laggard.workloads.plan import place
from laggard.workloads.planning.plan_file import PlanFile
from laggard.workloads.strategies.pipeline.parameters import PlannedParameters
from laggard.workloads.workload import Workload

_KEY: KeyPath = ("strategy", "plan")


def list_plans(workload: Workload) -> Iterator[tuple[str, KeyPath]]:
    """Yield the file of the plan of a workload, and the key that names it."""
    strategy = workload.strategy
    if isinstance(strategy, PlannedParameters) and isinstance(strategy.plan, str):
        yield strategy.plan, _KEY


def resolve_plan(
    workload: Workload, hosts: Sequence[Host], files: Mapping[str, bytes], source: YamlSource
) -> Workload:
    """Return the workload with the content of its plan.

    Without the file, which is a problem of its own, the workload stays as it is.

    Args:
        workload: workload whose placement is valid.
        hosts: all hosts of the continuum.
        files: content of the scenario's files by name.
        source: places of keys of `workload.yaml`.

    Raises:
        ScenarioError: the file is no plan, or a plan for other workers.
    """
    strategy = workload.strategy
    if not isinstance(strategy, PlannedParameters):
        return workload
    plan = strategy.plan
    if isinstance(plan, str):
        if plan not in files:
            return workload
        plan = validate_model(parse_yaml(files[plan], plan), PlanFile)
    try:
        _check(plan, workload, [host.name for host in place(workload.placement, hosts)])
    except InputError as error:
        rule, _, fix = str(error).partition(" — ")
        raise ScenarioError((source.locate_problem(_KEY, rule, fix),)) from error
    resolved = strategy.model_copy(update={"plan": plan})
    return workload.model_copy(update={"strategy": resolved})


def _check(plan: PlanFile, workload: Workload, ranks: Sequence[str]) -> None:
    if len({*ranks}) < len(ranks):
        raise InputError(
            f"{len(ranks)} workers on {len({*ranks})} hosts, and a plan has one worker on each —"
            " set placement.per_host to 1"
        )
    if plan.batch != workload.batch_size:
        raise InputError(
            f"the plan is for a batch of {plan.batch} samples, and batch_size is"
            f" {workload.batch_size} — make a new plan with `laggard plan-model`"
        )
    plan.to_plan()
    plan.find_ranks(ranks)
    idle = [name for name in ranks if name not in plan.hosts]
    if idle:
        raise InputError(
            f"the plan gives no block to {', '.join(idle[:4])}{', …' * (len(idle) > 4)} — place"
            f" workers on its hosts only: placement.workers: [{', '.join(plan.hosts)}]"
        )
