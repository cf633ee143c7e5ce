"""The analysis of a run whose ranks had each a pace of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from laggard.analysis.causes import Cause
from laggard.analysis.findings import STRAGGLER_SHARE, Analysis
from laggard.analysis.intervals import LEAST_STEPS
from laggard.analysis.load import Run
from laggard.analysis.own_pace.causes import Work
from laggard.analysis.own_pace.describe import describe_own_pace
from laggard.analysis.own_pace.model import modelled_race_s
from laggard.analysis.own_pace.paces import Pace
from laggard.analysis.own_pace.replay import Race
from laggard.analysis.own_pace.study import SEED, study_own_pace
from laggard.run_schema import Finding

MOST_STEPS = 200_000
"""Of all ranks together; longer runs would take minutes to be priced."""
MOST_NEEDS = 2_000_000


def analyse_own_pace(run: Run) -> Analysis:
    """Finds the stragglers of ranks of their own pace, and prices them.

    What a cause costs is its share of how much sooner as many samples would have been learnt from. Where ranks were lost, left or joined,
    or one finished no step, nothing is priced; nor in a trace of another tool, whose ranks wait for what no rule here knows.

    Raises:
        RunFolderError: no rank finished a step.
    """
    described = describe_own_pace(run)
    record = run.record
    if record is None or record.lost_ranks or record.churn or len(np.unique(run.steps.rank)) < run.world_size:
        return described
    if record.origin is not None:
        return described
    if too_large := _too_large(run):
        return replace(described, notes=(too_large,))
    found = study_own_pace(run)
    costs = found.costs()
    findings = [_finding(run, found.race, cause, float(cost)) for cause, cost in zip(found.causes, costs, strict=True)]
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


def _too_large(run: Run) -> str:
    """Why a run is not replayed; nothing if it can be."""
    steps, others = len(run.steps), run.world_size - 1
    everybody = run.record is not None and run.record.strategy.name == "bounded_staleness"
    if steps > MOST_STEPS:
        return (
            f"All workers together took {steps} steps, and up to {MOST_STEPS} are replayed to tell what slow ones cost."
        )
    if everybody and steps * others > MOST_NEEDS:
        return (
            f"{steps} steps that wait for {others} others each are too many to be replayed to tell what slow ones cost."
        )
    return ""


def _finding(run: Run, race: Race, cause: Cause, cost: float) -> Finding:
    assert cause.rank is not None
    number = race.paces[cause.rank].number
    other = _other_end(race.paces[cause.rank], cause)
    return Finding(
        rank=cause.rank,
        host=run.hosts[cause.rank].host,
        link=None if other is None else (run.hosts[other].host, run.hosts[cause.rank].host),
        family=cause.family,
        kind=cause.kind,
        first_step=int(number[cause.first]),
        last_step=int(number[cause.last]),
        slowdown=round(cause.slowdown, 4),
        cost_s=round(max(cost, 0.0), 6),
        confidence=round(min(max(cause.confidence, 0.0), 1.0), 4),
        masked=cost < STRAGGLER_SHARE * race.end_s,
    )


def _other_end(pace: Pace, cause: Cause) -> int | None:
    """The one rank that data went to or came from in the steps of a network cause; None where there were several, or a server."""
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
        f"{few} of the {len(counted)} ranks took under ten steps after the first: too few to find anything slow in them.",
    )
