"""Simulated sizes of a scenario as text and as a document for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.analysis.estimates.estimate import Estimate
from laggard.analysis.estimates.serial_part import LEAST_NUMBERS, fit_serial_part
from laggard.core.text.text_columns import align_columns
from laggard.core.text.text_format import format_percent
from laggard.predict.forecast_output import build_serial_part, format_serial_part, list_notes
from laggard.predict.simulation.crowd_scenario import WITH_ABSENCES
from laggard.predict.simulation.simulate_scenario import SimulatedScale, SimulatedScenario
from laggard.scenario.load import Scenario

if TYPE_CHECKING:
    from pydantic import JsonValue


def format_simulation(simulated: SimulatedScenario) -> str:
    """Format the simulated sizes of a scenario as a table."""
    scenario, workload = simulated.scenario, simulated.scenario.workload
    rows = [["workers", "step", "samples/s", "efficiency", "computing"]]
    for each in simulated.scales:
        error = f" ± {format_percent(each.relative_error)}" if each.relative_error else ""
        rows.append(
            [
                f"{each.workers:,}",
                f"{each.step_s:.4g} s{error}",
                f"{each.samples_per_s:.4g}",
                format_percent(each.efficiency),
                _format_shares(each),
            ]
        )
    serial = _fit_serial_part(simulated)
    serial_lines = [] if serial is None else [format_serial_part(serial, "weak")]
    notes = [f"note: {note}" for note in _list_notes(scenario)]
    title = (
        f"{scenario.name}: {workload.model} on {workload.dataset.name},"
        f" {workload.strategy.describe()}; {simulated.samples} samples of each worker in a step,"
        f" whose durations differ by {format_percent(simulated.spread)}"
    )
    return "\n".join([title, *align_columns(rows), *serial_lines, *notes])


def _list_notes(scenario: Scenario) -> tuple[str, ...]:
    knows_absences = scenario.workload.strategy.name in WITH_ABSENCES
    return list_notes(scenario, (), knows_absences=knows_absences)


def _fit_serial_part(simulated: SimulatedScenario) -> Estimate | None:
    speeds = {each.workers: each.samples_per_s for each in simulated.scales}
    return fit_serial_part(speeds, "weak") if len(speeds) >= LEAST_NUMBERS else None


def _format_shares(scale: SimulatedScale) -> str:
    """Format the parts of the time in which the classes compute, the most and the least."""
    shares = scale.computed_share
    most, least = (
        max(shares, key=lambda each: shares[each]),
        min(shares, key=lambda each: shares[each]),
    )
    text = f"{most} {format_percent(shares[most])}"
    return text if most == least else f"{text}, {least} {format_percent(shares[least])}"


def build_simulation_document(simulated: SimulatedScenario) -> dict[str, JsonValue]:
    """Return the simulated sizes as a document."""
    serial = _fit_serial_part(simulated)
    return {
        "scenario": simulated.scenario.name,
        "strategy": simulated.scenario.workload.strategy.describe(),
        "samples_per_worker": simulated.samples,
        "spread": simulated.spread,
        "scales": [
            {
                "workers": each.workers,
                "counts": dict(each.counts),
                "step_s": each.step_s,
                "samples_per_s": each.samples_per_s,
                "efficiency": each.efficiency,
                "computed_share": dict(each.computed_share),
                "relative_error": each.relative_error,
            }
            for each in simulated.scales
        ],
        "serial_part": None if serial is None else build_serial_part(serial, "weak"),
        "notes": list(_list_notes(simulated.scenario)),
    }
