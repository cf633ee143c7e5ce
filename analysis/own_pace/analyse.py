"""The analysis of a run whose ranks had each a pace of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from laggard.analysis.causes import Cause
from laggard.analysis.findings import Analysis, priced
from laggard.analysis.intervals import LEAST_STEPS
from laggard.analysis.load import Run
from laggard.analysis.own_pace.causes import Work
from laggard.analysis.own_pace.describe import describe_own_pace
from laggard.analysis.own_pace.model import modelled_race_s
from laggard.analysis.own_pace.paces import Pace
from laggard.analysis.own_pace.replay import Race
from laggard.analysis.own_pace.study import SEED, study_own_pace, why_not_replayed
from laggard.run_schema import Finding


def analyse_own_pace(run: Run) -> Analysis:
    """Finds the stragglers of ranks of their own pace, and prices them.

    What a cause costs is its share of how much sooner as many samples would have been learnt from.
    Where ranks were lost, left or joined, or one finished no step, nothing is priced; nor in a
    trace of another tool, whose ranks wait for what no rule here knows.

    Raises:
        RunFolderError: no rank finished a step.
    """
    described = describe_own_pace(run)
    if why := why_not_replayed(run):
        return replace(described, notes=(*described.notes, why))
    found = study_own_pace(run)
    costs = found.costs()
    findings = [
        _finding(run, found.race, cause, float(cost))
        for cause, cost in zip(found.causes, costs, strict=True)
    ]
    return replace(
        described,
        findings=tuple(sorted(findings, key=lambda f: -f.cost_s)),
        makespan_s=found.race.end_s,
        replayed_s=found.makespan_s(np.zeros(len(found.causes), dtype=np.bool_)),
        without_causes_s=found.makespan_s(np.ones(len(found.causes), dtype=np.bool_)),
        modelled_s=modelled_race_s(found.race, found.work, found.references, found.causes, SEED),
        notes=_notes(found.work),
        costed=True,
    )


def _finding(run: Run, race: Race, cause: Cause, cost: float) -> Finding:
    if cause.rank is None:
        numbers = [pace.number for pace in race.paces]
        steps = min(int(each[0]) for each in numbers), max(int(each[-1]) for each in numbers)
        return priced(cause, cost, race.end_s, None, steps)
    number = race.paces[cause.rank].number
    other = _other_end(race.paces[cause.rank], cause)
    link = None if other is None else (run.hosts[other].host, run.hosts[cause.rank].host)
    steps = int(number[cause.first]), int(number[cause.last])
    return priced(replace(cause, link=link), cost, race.end_s, run.hosts[cause.rank], steps)


def _other_end(pace: Pace, cause: Cause) -> int | None:
    """The one rank that data went to or came from in the steps of a network cause; None where there
    were several, or a server.
    """
    if cause.family != "network":
        return None
    partners = frozenset().union(*pace.partners[cause.first : cause.last + 1])
    return next(iter(partners)) if len(partners) == 1 else None


def _notes(work: Work) -> tuple[str, ...]:
    counted = work.counted.sum(axis=0)
    few = int((counted < LEAST_STEPS).sum())
    if not few:
        return ()
    return (
        (
            f"{few} of the {len(counted)} ranks took under ten steps after the first: too few to"
            " find anything slow in them."
        ),
    )
