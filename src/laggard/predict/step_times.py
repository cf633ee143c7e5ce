"""Step times of a model on the hosts of recorded runs.

The model and the data of a run are those of the scenario in its folder. Every kind of host has a
cost model of its own, fitted to all runs together. A run folder is data, so code that it names is
never executed: the demand of a model of the user's own must be given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from laggard.analysis.cost_model.fit_step_cost import StepMeasurement, choose_terms, fit_step_cost
from laggard.analysis.cost_model.host_measurements import (
    HostKind,
    HostMeasurement,
    measure_host_steps,
)
from laggard.analysis.tables.load_run import load_run
from laggard.core.cost_model.demand import ModelDemand, StepDemand
from laggard.core.cost_model.step_cost import COVERAGE, StepCostModel, StepPrediction
from laggard.core.errors import InputError
from laggard.core.run_schema import VIRTUAL_TESTBED
from laggard.scenario.load import load_scenario
from laggard.workloads.datasets.sample_shape import find_sample_shape
from laggard.workloads.models.model_demand import measure_model_demand
from laggard.workloads.specification.callables import is_callable_name
from laggard.workloads.workload import Workload

_NO_DEMANDS: Mapping[str, ModelDemand] = MappingProxyType({})


@dataclass(frozen=True)
class HostCosts:
    """Cost models of all kinds of hosts.

    Attributes:
        kinds: cost model of every kind.
        hosts: kinds that each host had in the runs; usually one.
    """

    kinds: Mapping[HostKind, StepCostModel]
    hosts: Mapping[str, tuple[HostKind, ...]]

    def predict(self, host: str, demand: StepDemand, coverage: float = COVERAGE) -> StepPrediction:
        """Predict the seconds that a step computes on a host, without communication.

        Args:
            host: name of a host, or of a kind of hosts.
            demand: what the step demands.
            coverage: share of new models whose seconds the interval shall include.

        Raises:
            InputError: the host is unknown, or was of several kinds.
        """
        return self.kinds[self._find_kind(host)].predict(demand, coverage)

    def _find_kind(self, host: str) -> HostKind:
        by_name = {str(kind): kind for kind in self.kinds}
        if host in by_name:
            return by_name[host]
        kinds = self.hosts.get(host, ())
        if not kinds:
            known = ", ".join([*self.hosts][:8])
            raise InputError(
                f"{host} is no host of these runs — give one of {known}"
                f"{', …' * (len(self.hosts) > 8)}, or a kind: {', '.join(by_name)}"
            )
        if len(kinds) > 1:
            raise InputError(
                f"{host} was of several kinds in these runs — give one of them instead:"
                f" {', '.join(map(str, kinds))}"
            )
        return kinds[0]


def fit_host_costs(
    folders: Sequence[Path], demands: Mapping[str, ModelDemand] = _NO_DEMANDS
) -> HostCosts:
    """Fit a cost model to every kind of host in recorded runs.

    The terms of a kind are those that its measurements determine. Runs of one model give no
    interval; runs of four models give all three terms of computing.

    Args:
        folders: run folders of Laggard, which trained the same or different models.
        demands: demand of each model of the user's own, by its name in `workload.yaml`.

    Raises:
        InputError: there is no run, or the model or the step times of a run are unknown.

    Examples:
        >>> from laggard.predict.step_times import measure_demand
        >>> costs = fit_host_costs([Path("runs/quickstart/latest")])
        >>> step = measure_demand("resnet8", "digits").step(samples=16)
        >>> costs.predict("edge.trainer.1.1", step).is_extrapolated
        False
    """
    measured = measure_runs(folders, demands)
    steps: dict[HostKind, list[StepMeasurement]] = {}
    hosts: dict[str, dict[HostKind, None]] = {}
    for each in measured:
        steps.setdefault(each.kind, []).append(each.step)
        hosts.setdefault(each.host, {})[each.kind] = None
    return HostCosts(
        {kind: fit_step_cost(own, choose_terms(own)) for kind, own in steps.items()},
        {host: tuple(kinds) for host, kinds in hosts.items()},
    )


def measure_runs(
    folders: Sequence[Path], demands: Mapping[str, ModelDemand] = _NO_DEMANDS
) -> tuple[HostMeasurement, ...]:
    """Return the measured steps of all hosts of recorded runs.

    Args:
        folders: run folders of Laggard.
        demands: demand of each model of the user's own, by its name in `workload.yaml`.

    Raises:
        InputError: there is no run, or the model or the step times of a run are unknown.

    Examples:
        >>> first, *_ = measure_runs([Path("runs/quickstart/latest")])
        >>> first.host, str(first.kind), first.step.model
        ('cloud.trainer.1.1', 'cloud', 'resnet8 on 1x8x8')
    """
    if not folders:
        raise InputError("no run was given — give at least one run folder")
    return tuple(each for folder in folders for each in _measure_run(folder, demands))


def measure_demand(model: str, dataset: str | Mapping[str, object]) -> ModelDemand:
    """Build a model for a dataset and count what training it demands.

    Args:
        model: value of `model` in `workload.yaml`.
        dataset: value of `dataset` in `workload.yaml`.

    Raises:
        InputError: there is no such model or dataset, or they do not fit together.

    Examples:
        >>> measure_demand("mlp", "digits").tensors
        4
    """
    try:
        workload = Workload.model_validate({"model": model, "dataset": dataset})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
        )
        raise InputError(
            f"model {model}, dataset {dataset}: {problems} — give them as in workload.yaml"
        ) from error
    return _measure_workload(workload)[1]


def _measure_run(folder: Path, demands: Mapping[str, ModelDemand]) -> tuple[HostMeasurement, ...]:
    run = load_run(folder)
    if run.record is not None and run.record.testbed == VIRTUAL_TESTBED:
        raise InputError(
            f"{folder}: was run --on {VIRTUAL_TESTBED}, so its step times are computed and not"
            " measured — give a run on another testbed"
        )
    scenario = run.folder / "scenario"
    if not (scenario / "workload.yaml").is_file():
        raise InputError(
            f"{folder}: has no scenario/workload.yaml, so its model is unknown — give a run of"
            " Laggard that trained a model"
        )
    workload = load_scenario(scenario).workload
    if workload.model in demands:
        return measure_host_steps(run, workload.model, demands[workload.model])
    for name in (workload.model, workload.dataset.name):
        if is_callable_name(name):
            raise InputError(
                f"{folder}: {name} is code, and code that a run folder names is not executed — give"
                f" demands={{{workload.model!r}: measure_demand(...)}}"
            )
    return measure_host_steps(run, *_measure_workload(workload))


def _measure_workload(workload: Workload) -> tuple[str, ModelDemand]:
    """Return the name of a workload's model, with the shape of its samples, and its demand."""
    samples = find_sample_shape(workload)
    demand = measure_model_demand(
        workload.model, samples.input_shape, samples.classes, samples.vocabulary
    )
    return f"{workload.model} on {'x'.join(map(str, samples.input_shape))}", demand
