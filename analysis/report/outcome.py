"""The outcome of a run, as tiles."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run
from laggard.analysis.wording import bytes_text, percent_text, seconds_text
from laggard.run_schema import Outcome

_STOPPED_BY = {
    "accuracy": "accuracy reached",
    "steps": "number of steps",
    "time": "time limit",
    "walltime": "end of the reservation",
}


@dataclass(frozen=True)
class Tile:
    """One number with its name."""

    name: str
    value: str
    remark: str = ""


def outcome_tiles(run: Run, analysis: Analysis | None) -> tuple[Tile, ...]:
    """What the run achieved; of a run that did not end, what its spans say."""
    outcome = run.record.outcome if run.record is not None else None
    if outcome is not None:
        dilated = run.record is not None and run.record.dilation != 1
        return (*_achieved(outcome, dilated=dilated), *_drawn(run), *_lost(analysis))
    if analysis is None:
        return ()
    return (
        Tile(_makespan_name(run), seconds_text(analysis.makespan_s)),
        Tile("Steps", f"{len(analysis.steps)}", "finished by every rank"),
        *_lost(analysis),
    )


def _makespan_name(run: Run) -> str:
    return (
        "Makespan"
        if run.record is not None and run.record.origin is not None
        else "Makespan so far"
    )


def _achieved(outcome: Outcome, *, dilated: bool) -> tuple[Tile, ...]:
    known = [
        Tile(
            "Makespan",
            seconds_text(outcome.makespan_s),
            "virtual time" if dilated else "first step to last",
        ),
        Tile("Steps", f"{outcome.steps}", f"stopped by: {_STOPPED_BY[outcome.stopped_by]}"),
        Tile("Throughput", f"{outcome.samples_per_s:.4g}", "samples per second"),
        Tile("Sent", bytes_text(outcome.bytes_sent), "over the network"),
        Tile("Fairness", f"{outcome.fairness:.2f}", "Jain's index; 1 is even"),
    ]
    if outcome.accuracy is not None:
        known.insert(2, Tile("Accuracy", percent_text(outcome.accuracy), "at the last evaluation"))
    if outcome.cost is not None:
        known.append(Tile("Price", f"{outcome.cost:.3g}", "in the unit of the scenario's prices"))
    return tuple(known)


def _drawn(run: Run) -> tuple[Tile, ...]:
    drawn = run.record.energy if run.record is not None else ()
    if not drawn:
        return ()
    kilojoules = sum(each.joules for each in drawn) / 1e3
    of_all = len({host.host for host in run.hosts})
    who = (
        "all hosts, as metered"
        if len(drawn) == of_all
        else f"the {len(drawn)} metered of {of_all} hosts"
    )
    return (Tile("Energy", f"{kilojoules:.3g} kJ", who),)


def _lost(analysis: Analysis | None) -> tuple[Tile, ...]:
    if analysis is None or analysis.makespan_s <= 0 or not analysis.costed:
        return ()
    lost = Tile(
        "Lost to stragglers",
        percent_text(max(analysis.lost_s, 0.0) / analysis.makespan_s),
        f"{seconds_text(max(analysis.lost_s, 0.0))} of the makespan",
    )
    relied = "costs can be relied on" if analysis.reliable else "costs are not to be relied on"
    return lost, Tile(
        "Explained", f"{100 * analysis.explained:.1f} %", f"of the makespan, by the model; {relied}"
    )
