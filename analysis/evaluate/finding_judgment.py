"""Judgment of the findings of one run: correct, missed and false ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.evaluate.alarm_judgment import AlarmJudgment
from laggard.analysis.evaluate.ground_truth import InjectedEvent
from laggard.analysis.evaluate.matching import match_findings
from laggard.core.run_schema import Finding, StragglerFamily, StragglerKind

Label = tuple[StragglerFamily, StragglerKind]


@dataclass(frozen=True)
class CaseJudgment:
    """Findings of one run, masked ones included, compared with its events.

    Undetectable events, and findings that are paired with them, count neither as correct nor as
    wrong.

    Attributes:
        found: labels (of the event, of the finding) of each detectable event that was found.
        missed: labels of the detectable events that were not found.
        false_positives: labels of the findings that match no event.
        undetectable: number of events that no detector could find.
        onset_delays: first step of the finding minus that of the event, for each dynamic event
            found.
        rank_named: whether the most expensive finding with a rank names a rank that was slow then;
            None if no event of a rank is detectable.
        link_named: whether the most expensive finding of the network names a link that was slow
            then; None if no event of the network is detectable.
        clean_steps: number of steps of a run without injection; else 0.
        cost_error: absolute difference of found and injected cost, divided by the makespan; None
            without injections.
        online: judgment of the live alarms; None if the live detector was not run.
    """

    found: tuple[tuple[Label, Label], ...]
    missed: tuple[Label, ...]
    false_positives: tuple[Label, ...]
    undetectable: int
    onset_delays: tuple[int, ...]
    rank_named: bool | None
    link_named: bool | None
    clean_steps: int
    cost_error: float | None
    online: AlarmJudgment | None = None

    @property
    def errors(self) -> int:
        """Return the number of missed, wrongly labeled and false findings."""
        return (
            len(self.missed)
            + len(self.false_positives)
            + sum(true != reported for true, reported in self.found)
        )


def judge_findings(
    events: Sequence[InjectedEvent],
    findings: Sequence[Finding],
    steps: int,
    cost_error: float | None,
) -> CaseJudgment:
    """Compare the findings of one run with the injected events.

    Args:
        events: the truth.
        findings: findings of the analysis, most expensive first.
        steps: number of steps of the run.
        cost_error: cost error of the run; None if it has no pair without injection.
    """
    pairs = match_findings(events, findings)
    seen, used = {e for e, _ in pairs}, {f for _, f in pairs}
    good = [(events[e], findings[f]) for e, f in pairs if events[e].detectable]
    return CaseJudgment(
        found=tuple((event.label, (finding.family, finding.kind)) for event, finding in good),
        missed=tuple(
            event.label for e, event in enumerate(events) if event.detectable and e not in seen
        ),
        false_positives=tuple(
            (finding.family, finding.kind) for f, finding in enumerate(findings) if f not in used
        ),
        undetectable=sum(not event.detectable for event in events),
        onset_delays=tuple(
            finding.first_step - event.first for event, finding in good if event.kind == "dynamic"
        ),
        rank_named=_is_rank_named(events, findings),
        link_named=_is_link_named(events, findings),
        clean_steps=0 if events else steps,
        cost_error=cost_error,
    )


def _is_rank_named(events: Sequence[InjectedEvent], findings: Sequence[Finding]) -> bool | None:
    if not any(event.detectable and event.rank is not None for event in events):
        return None
    # Findings are ordered by cost, so the first one is the most expensive.
    top = next((finding for finding in findings if finding.rank is not None), None)
    return top is not None and any(
        event.rank == top.rank and _has_common_steps(event, top) for event in events
    )


def _is_link_named(events: Sequence[InjectedEvent], findings: Sequence[Finding]) -> bool | None:
    if not any(event.detectable and event.rank is None for event in events):
        return None
    top = next((finding for finding in findings if finding.rank is None), None)
    return top is not None and any(
        top.link in event.links and _has_common_steps(event, top) for event in events
    )


def _has_common_steps(event: InjectedEvent, finding: Finding) -> bool:
    return event.first <= finding.last_step and finding.first_step <= event.last
