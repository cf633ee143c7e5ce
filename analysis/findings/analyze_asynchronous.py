"""Analysis of a run with asynchronous ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from laggard.analysis.detection.asynchronous_causes import StackedSteps
from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import MIN_STEPS
from laggard.analysis.findings.analysis_result import AnalysisResult, create_finding
from laggard.analysis.findings.describe_asynchronous import describe_asynchronous
from laggard.analysis.replay.asynchronous.async_analysis import (
    SEED,
    build_async_analysis,
    explain_no_replay,
)
from laggard.analysis.replay.asynchronous.async_replay import AsyncReplay
from laggard.analysis.replay.asynchronous.fitted_model import compute_modeled_async_makespan
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.run_schema import Finding


def analyze_asynchronous(run: RunData) -> AnalysisResult:
    """Find the stragglers of an asynchronous run and their costs.

    The cost of a cause is its share of the time saved in processing the same number of samples.
    Costs are not computed if ranks were lost, left or joined, if a rank finished no step, or if
    the trace comes from another tool, whose rules of waiting are unknown.

    Raises:
        RunFolderError: no rank finished a step.
    """
    described = describe_asynchronous(run)
    if why := explain_no_replay(run):
        return replace(described, notes=(*described.notes, why))
    found = build_async_analysis(run)
    costs = found.costs()
    findings = [
        _build_finding(run, found.async_replay, cause, float(cost))
        for cause, cost in zip(found.causes, costs, strict=True)
    ]
    return replace(
        described,
        findings=tuple(sorted(findings, key=lambda f: -f.cost_s)),
        makespan_s=found.async_replay.end_s,
        replayed_s=found.makespan_s(np.zeros(len(found.causes), dtype=np.bool_)),
        without_causes_s=found.makespan_s(np.ones(len(found.causes), dtype=np.bool_)),
        modeled_s=compute_modeled_async_makespan(
            found.async_replay, found.work, found.references, found.causes, SEED
        ),
        notes=_build_notes(found.work),
        costed=True,
    )


def _build_finding(run: RunData, async_replay: AsyncReplay, cause: Cause, cost: float) -> Finding:
    # A link that is slow throughout belongs to no rank, so its finding spans all ranks' steps.
    if cause.rank is None:
        numbers = [rank_timeline.number for rank_timeline in async_replay.rank_timelines]
        steps = min(int(each[0]) for each in numbers), max(int(each[-1]) for each in numbers)
        return create_finding(cause, cost, async_replay.end_s, None, steps)
    number = async_replay.rank_timelines[cause.rank].number
    other = _find_other_end(async_replay.rank_timelines[cause.rank], cause)
    link = None if other is None else (run.hosts[other].host, run.hosts[cause.rank].host)
    steps = int(number[cause.first]), int(number[cause.last])
    return create_finding(
        replace(cause, link=link), cost, async_replay.end_s, run.hosts[cause.rank], steps
    )


def _find_other_end(rank_timeline: RankTimeline, cause: Cause) -> int | None:
    """Return the only rank that exchanged data in the steps of a network cause.

    The result is None if there were several, or a server.
    """
    if not cause.spec.uses_links:
        return None
    partners = frozenset().union(*rank_timeline.partners[cause.first : cause.last + 1])
    return next(iter(partners)) if len(partners) == 1 else None


def _build_notes(work: StackedSteps) -> tuple[str, ...]:
    counted = work.counted.sum(axis=0)
    few = int((counted < MIN_STEPS).sum())
    if not few:
        return ()
    return (
        (
            f"{few} of the {len(counted)} ranks took under ten steps after warm-up, too few to"
            " detect slow intervals in them."
        ),
    )
