"""Tiles that show the outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import RunOutcome
from laggard.core.text.text_format import format_bytes, format_percent, format_seconds

_STOPPED_BY = {
    "accuracy": "target accuracy reached",
    "steps": "number of steps reached",
    "time": "time limit",
    "walltime": "end of the reservation",
}


@dataclass(frozen=True)
class Tile:
    """One number with its name."""

    name: str
    value: str
    remark: str = ""


def build_outcome_tiles(run: RunData, analysis: AnalysisResult | None) -> tuple[Tile, ...]:
    """Return the tiles of the run's outcome.

    A run without an outcome has the tiles that its spans allow.
    """
    outcome = run.record.outcome if run.record is not None else None
    if outcome is not None:
        dilated = run.record is not None and run.record.dilation != 1
        return (
            *_build_outcome_tiles(outcome, dilated=dilated),
            *_build_energy_tiles(run),
            *_build_loss_tiles(run, analysis),
        )
    if analysis is None:
        return ()
    return (
        Tile(_format_makespan_name(run), format_seconds(analysis.makespan_s)),
        Tile("Steps", f"{len(analysis.steps)}", "finished by every rank"),
        *_build_loss_tiles(run, analysis),
    )


def _format_makespan_name(run: RunData) -> str:
    return (
        "Makespan"
        if run.record is not None and run.record.origin is not None
        else "Makespan so far"
    )


def _build_outcome_tiles(outcome: RunOutcome, *, dilated: bool) -> tuple[Tile, ...]:
    known = [
        Tile(
            "Makespan",
            format_seconds(outcome.makespan_s),
            "virtual time" if dilated else "first step to last",
        ),
        Tile("Steps", f"{outcome.steps}", f"stopped by: {_STOPPED_BY[outcome.stopped_by]}"),
        Tile("Throughput", f"{outcome.samples_per_s:.4g}", "samples per second"),
        Tile("Sent", format_bytes(outcome.bytes_sent), "over the network"),
        Tile("Fairness", f"{outcome.fairness:.2f}", "Jain's index; 1 is perfectly even"),
    ]
    if outcome.accuracy is not None:
        known.insert(
            2, Tile("Accuracy", format_percent(outcome.accuracy), "at the last evaluation")
        )
    if outcome.cost is not None:
        known.append(Tile("Price", f"{outcome.cost:.3g}", "in the unit of the scenario's prices"))
    return tuple(known)


def _build_energy_tiles(run: RunData) -> tuple[Tile, ...]:
    drawn = run.record.energy if run.record is not None else ()
    if not drawn:
        return ()
    kilojoules = sum(each.joules for each in drawn) / 1e3
    # Several ranks may share a host, and energy is metered per host.
    of_all = len({host.host for host in run.hosts})
    who = (
        "all hosts, metered"
        if len(drawn) == of_all
        else f"the {len(drawn)} metered of {of_all} hosts"
    )
    return (Tile("Energy", f"{kilojoules:.3g} kJ", who),)


def _build_loss_tiles(run: RunData, analysis: AnalysisResult | None) -> tuple[Tile, ...]:
    if analysis is None or analysis.makespan_s <= 0 or not analysis.costed:
        return ()
    lost = Tile(
        "Lost to stragglers",
        format_percent(max(analysis.lost_s, 0.0) / analysis.makespan_s),
        f"{format_seconds(max(analysis.lost_s, 0.0))} of the makespan",
    )
    is_faithful = run.record is None or run.record.status != "unfaithful"
    relied = (
        "costs are reliable" if analysis.is_reliable and is_faithful else "costs are not reliable"
    )
    return lost, Tile(
        "Explained", f"{100 * analysis.explained:.1f} %", f"of the makespan, by the model; {relied}"
    )
