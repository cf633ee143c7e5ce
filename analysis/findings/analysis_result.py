"""Analysis of a lockstep run, and the result that all analyses share.

A result has the findings, their costs and the share of the run that they explain.
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
from laggard.analysis.replay.lockstep.residual_waits import (
    RankWaits,
    ResidualWaits,
    measure_residual_waits,
    measure_waits,
)
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.load_run import RankHost, RunData
from laggard.analysis.tables.timelines.time_split import TimeSplit, get_tier_placement, split_time
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.files.output_files import write_atomically
from laggard.core.run_schema import Finding
from laggard.core.simulation.maxplus import compute_makespan
from laggard.core.text.text_format import capitalize_sentence, format_count

# Shares of the makespan: largest unexplained part, and largest unexplained waiting, with which
# costs are reliable; and least cost of a straggler. Cheaper findings are masked.
RELIABLE_REMAINDER = 0.02
UNEXPLAINED_WAIT_SHARE = 0.05
STRAGGLER_SHARE = 0.01
# Fixed, so that the same run always has the same findings and costs.
_SEED = 20240229


@dataclass(frozen=True)
class AnalysisResult:
    """Result of the analysis of one run: S steps, W ranks; all times are in virtual seconds.

    Attributes:
        findings: all slow intervals, most expensive first; those with `masked` cost under 1 % of
            the makespan.
        hosts: host of every rank, in rank order.
        steps: numbers of the analyzed steps, [S], without steps that a killed run left incomplete.
        step_s: duration of each step on each rank, inside the clock, [S, W].
        compute_s: compute time (prep, h2d, forward, backward, optimizer), [S, W].
        wait_s: time waiting for the last rank to arrive, [S, W].
        transfer_s: exposed transfer time, [S, W].
        slowdown: compute time relative to the fleet reference, [S, W]; 1 is the usual duration of
            the fastest class.
        transfer_slowdown: transfer time of the collectives relative to its own baseline, [S].
        time_split: division of each rank's time into parts; the parts add up to makespan +
            evaluation.
        makespan_s: measured seconds from the first-step barrier to the stopping rule, evaluation
            excluded, according to the spans.
        outside_clock_s: seconds of evaluation pauses that were excluded.
        replayed_s: makespan replayed from the observed durations (it checks the replay, not the
            findings).
        without_causes_s: replayed makespan with every cause removed; the findings share the
            difference to `replayed_s`.
        modeled_s: makespan of the fitted model, which uses references and found causes but no
            observed duration.
        waits: waiting that remains without all causes; None if it was not measured.
        observed_waits: waiting as it was; None if it was not measured.
        notes: sentences that a reader of the numbers should know.
        costed: whether the costs of the causes were computed.
        common_steps: whether all ranks took the same steps. If not, step n is each rank's own n-th
            step, a finding has the step numbers of its rank, and a cost is the time saved in
            processing the same number of samples.
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
    waits: ResidualWaits | None = None
    observed_waits: RankWaits | None = None
    notes: tuple[str, ...] = ()
    costed: bool = True
    common_steps: bool = True

    @property
    def stragglers(self) -> tuple[Finding, ...]:
        """Return the findings that cost at least 1 % of the makespan."""
        return tuple(f for f in self.findings if not f.masked)

    @property
    def lost_s(self) -> float:
        """Return the seconds of the makespan that the findings cost together."""
        return self.replayed_s - self.without_causes_s

    @property
    def explained(self) -> float:
        """Return the modeled divided by the measured makespan; 1 is a perfect model."""
        return self.modeled_s / self.makespan_s if self.makespan_s > 0 else 1.0

    @property
    def unexplained_s(self) -> float:
        """Return the measured minus the modeled makespan; negative if the model is too slow."""
        return self.makespan_s - self.modeled_s

    @property
    def is_reliable(self) -> bool:
        """Return whether the findings account for the makespan, so that costs are reliable.

        The modeled makespan must be within 2 % of the measured one, and ranks must not wait for
        others for more than 5 % of it without an explanation.
        """
        return abs(self.explained - 1.0) <= RELIABLE_REMAINDER and not self.has_unexplained_waits

    @property
    def unexplained_wait_s(self) -> float:
        """Return the mean seconds that a rank waits for others for no known reason."""
        return 0.0 if self.waits is None else self.waits.unexplained_s

    @property
    def has_unexplained_waits(self) -> bool:
        """Return whether unexplained waiting is more than 5 % of the makespan."""
        return self.unexplained_wait_s > UNEXPLAINED_WAIT_SHARE * self.makespan_s


def analyze_lockstep(
    run: RunData, detectors: Sequence[CauseDetector] = DETECTORS
) -> AnalysisResult:
    """Find the stragglers of a lockstep run and their costs.

    Args:
        run: a loaded run folder of a strategy whose ranks take the same steps.
        detectors: detectors that search for causes, in their order.

    Returns:
        The findings with everything that the report draws.

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
    cheap = [
        cause.is_short and cost < STRAGGLER_SHARE * timeline.makespan
        for cause, cost in zip(causes, prices.costs, strict=True)
    ]
    if any(cheap):
        # Slow steps that are too few for an interval count only if they are expensive.
        causes = tuple(cause for cause, is_cheap in zip(causes, cheap, strict=True) if not is_cheap)
        found = found.with_causes(causes)
        prices = _price_causes(found)
    every_cause = np.ones(len(causes), dtype=np.bool_)
    waits = measure_residual_waits(found.replay.schedule_without(every_cause), timeline)
    observed_waits = measure_waits(found.replay.schedule)
    del found  # the schedule of a long run takes much memory and is not needed any more
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
        waits=waits,
        observed_waits=observed_waits,
    )
    return replace(result, notes=_build_notes(run, result))


@dataclass(frozen=True)
class _CausePrices:
    """Cost of each cause, [causes], and three replayed makespans, in seconds.

    Attributes:
        costs: Shapley share of each cause.
        replayed_s: makespan as it was.
        without_causes_s: makespan without all causes.
        modeled_s: makespan of references and causes alone.
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
    """Return the compute time relative to the fleet reference, [S, W]."""
    slowdown = np.empty_like(compute)
    for rank in range(compute.shape[1]):
        slowdown[:, rank] = np.exp(
            compute_log_ratio(compute[:, rank], references.fleet.total(rank, COMPUTE_CODES))
        )
    return slowdown


def write_findings(findings: Sequence[Finding], path: Path) -> None:
    """Write `stragglers.json`: a list of `Finding`, most expensive first."""
    content = TypeAdapter(tuple[Finding, ...]).dump_json(tuple(findings), indent=2) + b"\n"
    write_atomically(path, content)


def create_finding(
    cause: Cause, cost_s: float, makespan_s: float, host: RankHost | None, steps: tuple[int, int]
) -> Finding:
    """Create the finding of a cause and its cost.

    Args:
        cause: the slow interval.
        cost_s: share of the total cost that the cause has.
        makespan_s: makespan of the run; the finding is masked if it costs under 1 % of this.
        host: host of the cause's rank; None if the cause has no rank.
        steps: numbers of the first and the last slow step.
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
        slow_steps=len(cause.steps) or None,
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
    """Return the notes on data that the trace of another tool lacks, if the run is one."""
    return () if run.record is None or run.record.origin is None else run.record.origin.notes


def _build_notes(run: RunData, result: AnalysisResult) -> tuple[str, ...]:
    notes = list(get_origin_notes(run))
    if abs(result.explained - 1.0) > RELIABLE_REMAINDER:
        notes.append(
            "The model of reference durations and found causes accounts for"
            f" {100 * result.explained:.1f} % of the makespan. Costs are reliable only within 2 %"
            " of 100 %, so do not rely on them."
        )
    outcome = run.record.outcome if run.record is not None else None
    if (
        outcome is not None
        and abs(outcome.makespan_s - result.makespan_s) > 0.01 * outcome.makespan_s
    ):
        notes.append(
            f"run.json gives a makespan of {outcome.makespan_s:.2f} s, but the spans cover"
            f" {result.makespan_s:.2f} s."
        )
    if not len(run.links):
        notes.append(
            "links.parquet has no TCP samples, so no link can be named, and links that are slow"
            " throughout the run cannot be detected."
        )
    if len(result.steps) < 2 * MIN_STEPS:
        notes.append(
            f"{capitalize_sentence(format_count(len(result.steps), 'step'))} can show no change"
            " of a rank over time, so the ranks were compared with one another in the same step."
        )
    return tuple(notes)
