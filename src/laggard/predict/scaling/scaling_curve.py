"""Speeds by number of workers, predicted and recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.predict.forecast import Forecast, find_forecast_knee
from laggard.predict.predict_scenario import Prediction
from laggard.predict.scaling.recorded_speeds import RecordedSpeed, read_recorded_speeds
from laggard.predict.simulation.simulate_scenario import SimulatedScenario


@dataclass(frozen=True)
class ScalingPoint:
    """Predicted speed of one number of workers.

    Attributes:
        workers: number of workers.
        samples_per_s: samples of all workers per virtual second.
        low: lower end of the speed's interval.
        high: upper end of the speed's interval.
    """

    workers: int
    samples_per_s: float
    low: float
    high: float


@dataclass(frozen=True)
class ScalingCurve:
    """Speeds by number of workers.

    Attributes:
        name: name of the scenario.
        points: predicted speeds, in any order; at least one.
        recorded: speeds of runs.
        knee: number of workers beyond which more of them help little; None if it is unknown.
    """

    name: str
    points: tuple[ScalingPoint, ...]
    recorded: tuple[RecordedSpeed, ...] = ()
    knee: float | None = None


def build_predicted_curve(prediction: Prediction, recorded: Sequence[Path] = ()) -> ScalingCurve:
    """Return the curve of a prediction.

    Args:
        prediction: a prediction with one or several numbers of workers.
        recorded: folders of runs; those that are comparable are part of the curve.
    """
    scenario, forecasts = prediction.scenario, prediction.forecasts
    return ScalingCurve(
        scenario.name,
        tuple(map(_to_point, forecasts)),
        read_recorded_speeds(recorded, scenario, [each.samples for each in forecasts]),
        find_forecast_knee(forecasts),
    )


def build_simulated_curve(
    simulated: SimulatedScenario, recorded: Sequence[Path] = ()
) -> ScalingCurve:
    """Return the curve of a simulation; `recorded` is as for a prediction."""
    points = (
        ScalingPoint(
            each.workers,
            each.samples_per_s,
            each.samples_per_s / (1 + each.relative_error),
            each.samples_per_s * (1 + each.relative_error),
        )
        for each in simulated.scales
    )
    scenario = simulated.scenario
    return ScalingCurve(
        scenario.name,
        tuple(points),
        read_recorded_speeds(recorded, scenario, [simulated.samples]),
    )


def _to_point(forecast: Forecast) -> ScalingPoint:
    step_s, usual = forecast.step_s, forecast.samples_per_s
    low = forecast.batch_size / step_s.high_s if math.isfinite(step_s.high_s) else usual
    high = forecast.batch_size / step_s.low_s if step_s.low_s > 0 else usual
    return ScalingPoint(forecast.workers, usual, low, high)
