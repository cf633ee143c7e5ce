"""What is right and wrong in the findings of one run, counted."""

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
    """One run's findings, masked ones too, against its events.

    Events that are not detectable, and what is paired with them, count neither for nor against.

    Attributes:
        found: labels (event's, finding's) of each detectable event that was found.
        missed: labels of the detectable events that were not.
        false_positives: labels of the findings that are no event.
        undetectable: how many events no detector could see.
        onset_delays: found minus true first step of each dynamic event that was found.
        rank_named: whether the dearest finding with a rank names a rank that was slow then; None
            where no rank's event is detectable.
        link_named: whether the dearest finding of the network names a link that was slow then; None
            likewise.
        clean_steps: steps of the run, if nothing was injected; else 0.
        cost_error: absolute difference of found and injected cost, over the makespan; None without
            injections.
        online: of what the detector told while the run went on; None where it was not asked.
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
        """Events missed or called by a wrong name, and findings of nothing."""
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
    """Holds the findings of one run against what was injected.

    Args:
        events: the truth.
        findings: what the analysis found, dearest first.
        steps: how many the run had.
        cost_error: of the run's makespan, if it has a pair without injection.

    Returns:
        What is right and wrong.
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
