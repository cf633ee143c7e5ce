"""From the spans of a run to its stragglers: the findings, what they cost, and how much of the run
they explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import MIN_STEPS
from laggard.analysis.detection.lockstep.cause_detector import CauseDetector
from laggard.analysis.detection.lockstep.registry import DETECTORS
from laggard.analysis.detection.reference import COMPUTE_CODES, References, compute_log_ratio
from laggard.analysis.replay.lockstep.fitted_model import compute_modeled_makespan
from laggard.analysis.replay.lockstep.lockstep_analysis import (
    LockstepAnalysis,
    build_lockstep_analysis,
)
from laggard.analysis.replay.lockstep.maxplus import compute_makespan
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.load_run import RankHost, RunData
from laggard.analysis.tables.timelines.time_split import TimeSplit, get_tier_placement, split_time
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.run_schema import Finding

RELIABLE_REMAINDER = 0.02
STRAGGLER_SHARE = 0.01
_SEED = 20240229


@dataclass(frozen=True)
class AnalysisResult:
    """What the analysis says of one run. S steps, W ranks; every time is in virtual seconds.

    Attributes:
        findings: every slow interval found, dearest first; those with `masked` are under 1 % of the
            makespan.
        hosts: where each rank ran, in rank order.
        steps: numbers of the analyzed steps, [S]; steps that a killed run left incomplete are not
            among them.
        step_s: how long each step took each rank, inside the clock, [S, W].
        compute_s: its compute (prep, h2d, forward, backward, optimizer), [S, W].
        wait_s: its waiting for the last to arrive, [S, W].
        transfer_s: its exposed transfer, [S, W].
        slowdown: compute against the fleet reference, [S, W]; 1 is the fastest class's usual.
        transfer_slowdown: the collectives' transfer against its own baseline, [S].
        time_split: where each rank's time went; adds up to makespan + evaluation.
        makespan_s: first-step barrier to the stopping rule, evaluation excluded, as the spans have
            it.
        outside_clock_s: evaluation pauses that were taken out.
        replayed_s: the makespan as replayed from the observed durations (checks the replay, not the
            findings).
        without_causes_s: replayed makespan with every finding removed; makespan - this is what the
            findings share.
        modeled_s: makespan of the fitted model: references and found causes only, no observed
            duration.
        notes: sentences a reader of the numbers should know.
        costed: whether what causes cost was computed.
        common_steps: whether all ranks took the same steps; else a rank's n-th is its own, findings
            give their rank's, and what they cost is how much sooner as much would have been learnt.
    """

    findings: tuple[Finding, ...]
    hosts: tuple[RankHost, ...]
    steps: IntArray
    step_s: FloatArray
    compute_s: FloatArray
    wait_s: FloatArray
    transfer_s: FloatArray
    slowdown: FloatArray
    transfer_slowdown: FloatArray
    time_split: TimeSplit
    makespan_s: float
    outside_clock_s: float
    replayed_s: float
    without_causes_s: float
    modeled_s: float
    notes: tuple[str, ...] = ()
    costed: bool = True
    common_steps: bool = True

    @property
    def stragglers(self) -> tuple[Finding, ...]:
        """Findings that cost at least 1 % of the makespan."""
        return tuple(f for f in self.findings if not f.masked)

    @property
    def lost_s(self) -> float:
        """Seconds of the makespan that the findings cost together."""
        return self.replayed_s - self.without_causes_s

    @property
    def explained(self) -> float:
        """Modelled over measured makespan; 1 is a perfect account."""
        return self.modeled_s / self.makespan_s if self.makespan_s > 0 else 1.0

    @property
    def unexplained_s(self) -> float:
        """Measured minus modelled makespan (negative where the model is too slow)."""
        return self.makespan_s - self.modeled_s

    @property
    def is_reliable(self) -> bool:
        """Whether the remainder is within 2 %, so that the costs can be relied on."""
        return abs(self.explained - 1.0) <= RELIABLE_REMAINDER


def analyze_lockstep(
    run: RunData, detectors: Sequence[CauseDetector] = DETECTORS
) -> AnalysisResult:
    """Finds a run's stragglers and prices them.

    Args:
        run: a loaded run folder, of a strategy whose ranks take the same steps.
        detectors: detectors that look for causes, in their order.

    Returns:
        The findings with everything the report draws.

    Raises:
        RunFolderError: some rank recorded no step.
    """
    found = build_lockstep_analysis(run, detectors)
    timeline, references, transfers, causes = (
        found.timeline,
        found.references,
        found.transfers,
        found.causes,
    )
    prices = _price_causes(found)
    del found  # the schedule of a long run is large, and what follows needs none
    makespan_s = timeline.makespan
    compute, wait, transfer = (
        timeline.work.total(COMPUTE_CODES),
        timeline.step_wait,
        timeline.step_transfer,
    )
    findings = [
        _build_finding(run, timeline, cause, cost, makespan_s)
        for cause, cost in zip(causes, prices.costs, strict=True)
    ]
    result = AnalysisResult(
        findings=tuple(sorted(findings, key=lambda f: -f.cost_s)),
        hosts=run.hosts,
        steps=timeline.steps,
        step_s=timeline.work.total() + wait + transfer,
        compute_s=compute,
        wait_s=wait,
        transfer_s=transfer,
        slowdown=_compute_slowdown(compute, references),
        transfer_slowdown=np.exp(transfers.step_logs),
        time_split=split_time(timeline, get_tier_placement(run)),
        makespan_s=makespan_s,
        outside_clock_s=float(timeline.outside.sum()),
        replayed_s=prices.replayed_s,
        without_causes_s=prices.without_causes_s,
        modeled_s=prices.modeled_s,
    )
    return replace(result, notes=_build_notes(run, result))


@dataclass(frozen=True)
class _CausePrices:
    """Each cause's cost, [causes], and the run replayed: as it was, without them all, and from them
    alone; seconds.
    """

    costs: FloatArray
    replayed_s: float
    without_causes_s: float
    modeled_s: float


def _price_causes(found: LockstepAnalysis) -> _CausePrices:
    what_if, schedule = found.replay, found.replay.schedule
    return _CausePrices(
        costs=what_if.costs(_SEED),
        replayed_s=compute_makespan(schedule),
        without_causes_s=what_if.makespan(np.ones(len(found.causes), dtype=np.bool_)),
        modeled_s=compute_modeled_makespan(
            found.timeline, found.references, found.transfers, found.causes, schedule, _SEED
        ),
    )


def _compute_slowdown(compute: FloatArray, references: References) -> FloatArray:
    """Compute against the fleet reference, [S, W]."""
    slowdown = np.empty_like(compute)
    for rank in range(compute.shape[1]):
        slowdown[:, rank] = np.exp(
            compute_log_ratio(compute[:, rank], references.fleet.total(rank, COMPUTE_CODES))
        )
    return slowdown


def write_findings(findings: Sequence[Finding], path: Path) -> None:
    """Writes `stragglers.json`: a list of `Finding`, dearest first."""
    path.write_bytes(TypeAdapter(tuple[Finding, ...]).dump_json(tuple(findings), indent=2) + b"\n")


def create_finding(
    cause: Cause, cost_s: float, makespan_s: float, host: RankHost | None, steps: tuple[int, int]
) -> Finding:
    """A cause with its price.

    Args:
        cause: what was slow.
        cost_s: its share of what all cost.
        makespan_s: of the run; under 1 % of it the finding is masked.
        host: of the cause's rank.
        steps: numbers of its first and last step.
    """
    return Finding(
        rank=cause.rank,
        host=None if host is None else host.host,
        link=cause.link,
        family=cause.family,
        kind=cause.kind,
        first_step=steps[0],
        last_step=steps[1],
        slowdown=round(cause.slowdown, 4),
        cost_s=round(max(float(cost_s), 0.0), 6),
        confidence=round(min(max(cause.confidence, 0.0), 1.0), 4),
        masked=float(cost_s) < STRAGGLER_SHARE * makespan_s,
    )


def _build_finding(
    run: RunData, timeline: Timeline, cause: Cause, cost: float, makespan_s: float
) -> Finding:
    host = None if cause.rank is None else run.hosts[cause.rank]
    return create_finding(
        cause,
        cost,
        makespan_s,
        host,
        (int(timeline.steps[cause.first]), int(timeline.steps[cause.last])),
    )


def get_origin_notes(run: RunData) -> tuple[str, ...]:
    """What another tool's trace does not tell, where the run is one."""
    return () if run.record is None or run.record.origin is None else run.record.origin.notes


def _build_notes(run: RunData, result: AnalysisResult) -> tuple[str, ...]:
    notes = list(get_origin_notes(run))
    if not result.is_reliable:
        notes.append(
            f"The references and the causes found account for {100 * result.explained:.1f} % of the"
            " makespan; beyond 2 % from 100 the costs are not to be relied on."
        )
    outcome = run.record.outcome if run.record is not None else None
    if (
        outcome is not None
        and abs(outcome.makespan_s - result.makespan_s) > 0.01 * outcome.makespan_s
    ):
        notes.append(
            f"run.json says the makespan was {outcome.makespan_s:.2f} s; the spans cover"
            f" {result.makespan_s:.2f} s of it."
        )
    if not len(run.links):
        notes.append(
            "There are no TCP samples (links.parquet), so no link can be named and no lasting slow"
            " link found."
        )
    if len(result.steps) < 2 * MIN_STEPS:
        notes.append(
            f"Only {len(result.steps)} steps were recorded: too few to find anything slow for ten"
            " steps."
        )
    return tuple(notes)
