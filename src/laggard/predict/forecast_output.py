"""Forecasts as text and as a document for machines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from laggard.analysis.estimates.estimate import Estimate
from laggard.analysis.estimates.serial_part import LEAST_NUMBERS, Scaling, fit_serial_part
from laggard.core.revocation.expected_finish import ExpectedFinish
from laggard.core.text.text_columns import align_columns
from laggard.core.text.text_format import format_percent
from laggard.predict.forecast import Forecast, Limit, find_forecast_knee
from laggard.predict.predict_scenario import Prediction
from laggard.predict.revocable import RevocationForecast, format_revocations
from laggard.scenario.load import Scenario

if TYPE_CHECKING:
    from pydantic import JsonValue

_WIDE = 0.2
"""Width of the interval of a serial part from which it says nothing."""


def format_prediction(prediction: Prediction) -> str:
    """Format the forecasts of a scenario with one or several numbers of workers."""
    lines = _format_lines(prediction)
    return "\n".join([*lines, *map(format_revocations, prediction.revocations)])


def _format_lines(prediction: Prediction) -> Iterator[str]:
    scenario, forecasts, curve = prediction.scenario, prediction.forecasts, prediction.accuracy
    workload = scenario.workload
    learned = curve is not None and bool(curve.learned)
    yield (
        f"{scenario.name}: {workload.model} on {workload.dataset.name},"
        f" {workload.strategy.describe()}"
    )
    steps = workload.stop.steps
    priced = any(each.cost_per_hour for each in forecasts)
    header = ["workers", "samples", "step", "samples/s", "per worker"]
    header += [f"{steps} steps"] * (steps is not None)
    if learned:
        header.append(f"{100 * (workload.stop.accuracy or 0):g} % accuracy")
    header += ["per hour"] * priced + ["limited by"]
    rows = [header]
    for each in forecasts:
        row = [
            str(each.workers),
            str(each.samples),
            _format_interval(each),
            f"{each.samples_per_s:.4g}",
            f"{each.samples_per_s / each.workers:.3g}",
        ]
        if steps is not None:
            row.append(f"{each.makespan_s(steps).usual_s:.4g} s")
        if learned:
            row.append(_format_accuracy(prediction, each))
        if priced:
            row.append(f"{each.cost_per_hour:.2f}")
        rows.append([*row, _format_limit(each)])
    yield from align_columns(rows)
    if len(forecasts) > 1:
        yield _format_knee(forecasts)
    serial = fit_forecast_serial_part(forecasts)
    if serial is not None:
        yield format_serial_part(*serial)
    notes = (*list_notes(scenario, forecasts), *(curve.notes if curve is not None else ()))
    yield from (f"note: {each}" for each in notes)


def fit_forecast_serial_part(forecasts: Sequence[Forecast]) -> tuple[Estimate, Scaling] | None:
    """Return the serial part of a training and its law; None if there are too few forecasts."""
    if len(forecasts) < LEAST_NUMBERS:
        return None
    scaling: Scaling = "strong" if len({each.batch_size for each in forecasts}) == 1 else "weak"
    return fit_serial_part(
        {each.workers: each.samples_per_s for each in forecasts}, scaling
    ), scaling


def format_serial_part(part: Estimate, scaling: Scaling) -> str:
    """Format the part of a step that more workers do not shorten."""
    law = "Amdahl" if scaling == "strong" else "Gustafson"
    low, high = (part.mean if end is None else end for end in (part.low, part.high))
    if high - low > _WIDE:
        return f"these speeds do not follow {law}'s law: no constant part of a step is serial"
    shown = f"{format_percent(part.mean)} ({format_percent(low)} to {format_percent(high)})"
    return f"by {law}'s law, {shown} of a step of one worker is serial"


def build_serial_part(part: Estimate, scaling: Scaling) -> dict[str, JsonValue]:
    """Return the serial part as a document."""
    return {"scaling": scaling, "mean": part.mean, "low": part.low, "high": part.high}


def list_notes(
    scenario: Scenario, forecasts: Sequence[Forecast], *, knows_absences: bool = False
) -> tuple[str, ...]:
    """Return sentences about what the forecasts do not know.

    Args:
        scenario: the scenario.
        forecasts: forecasts of it, with notes of their own.
        knows_absences: whether workers that leave or join are known.
    """
    notes = dict.fromkeys(note for each in forecasts for note in each.notes)
    quantities = {name for change in scenario.changes for name, _ in change.values}
    unknown = sorted(quantities - {"cpu", "rate_mbps"})
    if unknown:
        notes[f"timed changes of {', '.join(unknown)} are not predicted"] = None
    if any(each.loss_percent for each in scenario.links.pairs.values()):
        notes["lost packets are not predicted, so links with loss are slower than this"] = None
    if scenario.workload.samples == "prepared":
        notes["every step is predicted to prepare its samples, although they are prepared"] = None
    if scenario.workload.churn_entries and not knows_absences:
        notes["workers that leave or join are not predicted: all are present here"] = None
    return tuple(notes)


def build_prediction_document(prediction: Prediction) -> dict[str, JsonValue]:
    """Return the forecasts as a document."""
    scenario, forecasts = prediction.scenario, prediction.forecasts
    steps = scenario.workload.stop.steps
    serial = fit_forecast_serial_part(forecasts)
    return {
        "scenario": scenario.name,
        "strategy": scenario.workload.strategy.describe(),
        "forecasts": [
            {
                "workers": each.workers,
                "samples_per_worker": each.samples,
                "batch_size": each.batch_size,
                "step_s": each.step_s.usual_s,
                "step_s_low": each.step_s.low_s,
                "step_s_high": each.step_s.high_s if math.isfinite(each.step_s.high_s) else None,
                "samples_per_s": each.samples_per_s,
                "makespan_s": None if steps is None else each.makespan_s(steps).usual_s,
                "accuracy_s": _build_accuracy(prediction, each),
                "cost_per_hour": each.cost_per_hour,
                "limited_by": each.limit.name.lower(),
                "gains": {burden.name.lower(): gain for burden, gain in each.gains.items()},
                "slowest": each.slowest,
            }
            for each in forecasts
        ],
        "knee_workers": find_forecast_knee(forecasts),
        "serial_part": None if serial is None else build_serial_part(*serial),
        "revocations": [
            {
                "workers": each.workers,
                "checkpoint_every": each.best_steps,
                "best": _finish_document(each, each.best),
                "planned": None if each.planned is None else _finish_document(each, each.planned),
            }
            for each in prediction.revocations
        ],
        "notes": [
            *list_notes(scenario, forecasts),
            *(prediction.accuracy.notes if prediction.accuracy is not None else ()),
        ],
    }


def _build_accuracy(prediction: Prediction, forecast: Forecast) -> JsonValue:
    curve = prediction.accuracy
    found_s = None if curve is None else curve.forecast_s(forecast)
    if found_s is None:
        return None
    return {
        "low": found_s.low_s,
        "usual": found_s.usual_s,
        "high": found_s.high_s if math.isfinite(found_s.high_s) else None,
    }


def _format_accuracy(prediction: Prediction, forecast: Forecast) -> str:
    curve = prediction.accuracy
    found_s = None if curve is None else curve.forecast_s(forecast)
    return "unknown" if found_s is None else f"{found_s.usual_s:.4g} s"


def _finish_document(forecast: RevocationForecast, finish: ExpectedFinish) -> dict[str, JsonValue]:
    ends = math.isfinite(finish.finish_s)
    return {
        "finish_s": finish.finish_s if ends else None,
        "revocations": finish.revocations if ends else None,
        "cost": forecast.cost(finish) if ends else None,
    }


def _format_interval(forecast: Forecast) -> str:
    step_s = forecast.step_s
    high = f"{step_s.high_s:.3g}" if math.isfinite(step_s.high_s) else "unknown"
    return f"{step_s.usual_s:.3g} s ({step_s.low_s:.3g} to {high})"


def _format_limit(forecast: Forecast) -> str:
    if forecast.limit is Limit.COMPUTE:
        return str(forecast.limit)
    name = f" ({forecast.slowest})" if forecast.limit is Limit.SLOW_WORKERS else ""
    return f"{forecast.limit}{name}: {format_percent(forecast.gains[forecast.limit])} of the time"


def _format_knee(forecasts: Sequence[Forecast]) -> str:
    knee = find_forecast_knee(forecasts)
    most = max(forecasts, key=lambda each: each.samples_per_s)
    if knee is None:
        return f"the speed still grows at {forecasts[-1].workers} workers"
    beyond = next((each for each in forecasts if each.workers >= knee), most)
    return (
        f"beyond about {knee:.1f} workers more of them help little: {beyond.limit} set the limit;"
        f" the greatest speed is {most.samples_per_s:.4g} samples/s, at {most.workers} workers"
    )
