"""Jobs whose steps per second are predicted: a workload file on the layers of a continuum.

The hosts of a layer are the devices of a type. A job on n devices of a type trains on the first n
hosts of that layer.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from laggard.core.errors import InputError, ScenarioError
from laggard.core.files.input_files import read_bounded
from laggard.core.files.output_files import make_folder, write_atomically
from laggard.core.yaml_source import MAX_BYTES
from laggard.predict.forecast import forecast_scenario, require_predictable
from laggard.predict.host_steps import MachineSteps
from laggard.scenario.load import Scenario, load_scenario
from laggard.workloads.scheduling.cluster_jobs import DeviceType

Curves = Mapping[str, Mapping[int, float]]


def read_layers(folder: Path, prices: Mapping[str, float]) -> tuple[DeviceType, ...]:
    """Return the layers of a scenario folder as types of devices.

    Args:
        folder: scenario folder; its workload is not used.
        prices: price of a host of each layer for an hour; 0 for layers without one.

    Raises:
        InputError: there is no layer of a priced name.
        ScenarioError: the scenario is wrong.
    """
    layers = list_layer_hosts(folder)
    for name in prices:
        if name not in layers:
            raise InputError(f"prices: {name} is no layer — the layers are {', '.join(layers)}")
    return tuple(
        DeviceType(name, len(hosts), prices.get(name, 0.0)) for name, hosts in layers.items()
    )


def predict_curves(folder: Path, workload: Path, scale: int) -> tuple[Curves, int | None]:
    """Predict the steps per second of a workload on the layers of a continuum.

    A few steps of its model are measured on one core of this machine.

    Args:
        folder: scenario folder whose layers, links and limits count.
        workload: `workload.yaml` of the job; where it trains is not read from there.
        scale: number of devices for which a speed is needed, beside powers of two.

    Returns:
        Steps per second by layer and number of hosts, and the steps after which the workload ends,
        or None if it has no such end.

    Raises:
        InputError: a file is missing, or the workload cannot be predicted.
        ScenarioError: the workload is wrong at a certain line.
    """
    layers = list_layer_hosts(folder)
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / folder.name
        copy_with_workload(folder, workload, copy)
        try:
            scenarios = {
                (layer, number): _load_on(copy, hosts[:number])
                for layer, hosts in layers.items()
                for number in _list_numbers(len(hosts), scale)
            }
        except ScenarioError as error:
            raise _name_original(error, copy / "workload.yaml", workload) from error
        if not scenarios:
            most = max(map(len, layers.values()))
            raise InputError(
                f"{workload}: needs {scale} hosts of a layer, which has {most} at most"
            )
        source = MachineSteps.measure([*scenarios.values()])
        curves: dict[str, dict[int, float]] = {layer: {} for layer, _ in scenarios}
        for (layer, number), scenario in scenarios.items():
            step_s = forecast_scenario(scenario, source).step_s.usual_s
            curves[layer][number] = 1.0 / step_s
    return curves, next(iter(scenarios.values())).workload.stop.steps


def list_layer_hosts(folder: Path) -> Mapping[str, Sequence[str]]:
    """Return the names of the hosts of each layer of a scenario folder."""
    layers: dict[str, list[str]] = {}
    for host in load_scenario(folder, training=False).hosts:
        layers.setdefault(host.layer, []).append(host.name)
    return layers


def copy_with_workload(folder: Path, workload: Path, copy: Path) -> None:
    """Copy the files of a scenario, with another workload."""
    content = load_scenario(folder, training=False).files()
    files = {**content, "workload.yaml": read_bounded(workload, MAX_BYTES)}
    for name, data in files.items():
        path = Path(name)
        write_atomically(make_folder(copy, *path.parent.parts) / path.name, data)


def _name_original(error: ScenarioError, copy: Path, original: Path) -> ScenarioError:
    """Return the error with the user's file instead of its copy."""
    return ScenarioError(
        tuple(
            replace(each, path=str(original)) if each.path == str(copy) else each
            for each in error.problems
        )
    )


def _list_numbers(count: int, scale: int) -> Sequence[int]:
    """Return the powers of two up to a number of hosts, and the scale; none if they are too few."""
    if scale > count:
        return ()
    return sorted({scale} | {1 << power for power in range(count.bit_length())})


def _load_on(folder: Path, hosts: Sequence[str]) -> Scenario:
    scenario = load_scenario(folder, [f"workload.placement.workers={json.dumps([*hosts])}"])
    require_predictable(scenario)
    return scenario
