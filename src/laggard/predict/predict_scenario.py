"""Prediction of a scenario with one or several numbers of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import InputError
from laggard.predict.accuracy_curve import AccuracyCurve
from laggard.predict.forecast import Forecast, forecast_scenario, require_predictable
from laggard.predict.host_steps import MachineSteps, RecordedSteps
from laggard.predict.revocable import (
    RevocationForecast,
    RevocationOptions,
    forecast_revocations,
    require_lockstep,
)
from laggard.predict.worker_numbers import load_with_numbers, parse_worker_numbers
from laggard.scenario.load import Scenario, load_scenario


@dataclass(frozen=True)
class Prediction:
    """Prediction of a scenario.

    Attributes:
        scenario: the scenario as it is.
        forecasts: a forecast for every number of workers.
        revocations: expected ends with revocations, for every number of workers; empty if the lives
            of the machines are not given.
        accuracy: what recorded runs say about the accuracy at which training ends; None if it does
            not end at one, or nothing was recorded.
    """

    scenario: Scenario
    forecasts: tuple[Forecast, ...]
    revocations: tuple[RevocationForecast, ...] = ()
    accuracy: AccuracyCurve | None = None


@dataclass(frozen=True)
class PredictionOptions:
    """Options of a prediction.

    Attributes:
        workers: numbers of hosts of a tier (see `parse_worker_numbers`); those of the scenario if
            None.
        samples: samples of one worker in a step; if None, the batch is divided by the workers.
        recorded: runs whose steps are known; if empty, steps are measured on this machine.
        revocations: lives of machines that may be revoked; None if they are not.

    Examples:
        >>> PredictionOptions(workers="edge=1..64").samples is None
        True
    """

    workers: str | None = None
    samples: int | None = None
    recorded: tuple[Path, ...] = ()
    revocations: RevocationOptions | None = None


_DEFAULTS = PredictionOptions()


def predict_scenario(
    folder: Path, overrides: Sequence[str] = (), options: PredictionOptions = _DEFAULTS
) -> Prediction:
    """Predict the training of a scenario.

    Args:
        folder: folder of the scenario.
        overrides: overrides of the command line.
        options: what the prediction starts from.

    Raises:
        InputError: the scenario trains nothing, or cannot be predicted.
        ScenarioError: the scenario is wrong.

    Examples:
        >>> prediction = predict_scenario(Path("my-continuum"))
        >>> prediction.forecasts[0].samples_per_s > 0
        True
    """
    scenario = load_scenario(folder, overrides)
    if not scenario.trains:
        raise InputError(
            f"{folder}: {scenario.untrained_reason} — give a scenario whose workload.yaml has a"
            " model and a dataset, or use laggard plan"
        )
    if options.samples is not None and options.workers is None:
        raise InputError(
            "--samples-per-worker needs --workers — give both, or set workload.batch_size"
        )
    require_predictable(scenario)
    if options.revocations is not None:
        require_lockstep(scenario)
    scenarios = (
        [scenario]
        if options.workers is None
        else list(
            load_with_numbers(
                folder, overrides, parse_worker_numbers(options.workers), options.samples
            )
        )
    )
    source = (
        RecordedSteps.read(options.recorded, scenario.workload)
        if options.recorded
        else MachineSteps.measure(scenarios)
    )
    forecasts = tuple(forecast_scenario(each, source) for each in scenarios)
    revocations = options.revocations
    accuracy = AccuracyCurve.read(options.recorded, scenario.workload)
    if revocations is None:
        return Prediction(scenario, forecasts, accuracy=accuracy)
    ends = tuple(
        forecast_revocations(each, forecast, revocations)
        for each, forecast in zip(scenarios, forecasts, strict=True)
    )
    return Prediction(scenario, forecasts, ends, accuracy)
