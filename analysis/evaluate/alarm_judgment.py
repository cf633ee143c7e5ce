"""Judgment of the live alarms of one run, by the same rules as findings, and their delays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.evaluate.ground_truth import InjectedEvent
from laggard.analysis.evaluate.matching import match_findings
from laggard.core.run_schema import Alarm, Finding


@dataclass(frozen=True)
class AlarmJudgment:
    """Alarms of one run compared with its events.

    Undetectable events, and alarms that are paired with them, count neither as correct nor as
    wrong.

    Attributes:
        found: number of detectable events with an alarm of the same family and kind.
        missed: number of detectable events without one.
        false_positives: number of alarms that match no event, or an event of another family or
            kind.
        delays: steps from the first slow step of each dynamic event to the step after which its
            alarm was raised.
    """

    found: int
    missed: int
    false_positives: int
    delays: tuple[int, ...]


def judge_alarms(
    events: Sequence[InjectedEvent], alarms: Sequence[Alarm], steps: int
) -> AlarmJudgment:
    """Compare the alarms of one run with the injected events.

    Args:
        events: the truth.
        alarms: alarms in their last state; one that is still open lasts to the end of the run.
        steps: number of steps of the run.
    """
    findings = [to_finding(alarm, steps) for alarm in alarms]
    pairs = match_findings(events, findings)
    right = [(e, f) for e, f in pairs if events[e].label == (findings[f].family, findings[f].kind)]
    named = {e for e, _ in right}
    # An alarm with a wrong label is a false positive, unless its event is undetectable.
    used = {f for e, f in pairs if e in named or not events[e].detectable}
    found = [(events[e], alarms[f]) for e, f in right if events[e].detectable]
    return AlarmJudgment(
        found=len(found),
        missed=sum(event.detectable and e not in named for e, event in enumerate(events)),
        false_positives=len(findings) - len(used),
        delays=tuple(
            alarm.raised_step - event.first for event, alarm in found if event.kind == "dynamic"
        ),
    )


def to_finding(alarm: Alarm, steps: int) -> Finding:
    """Convert an alarm to the finding that it corresponds to; its cost is unknown and set to 0."""
    return Finding(
        rank=alarm.rank,
        host=alarm.host,
        link=alarm.link,
        family=alarm.family,
        kind=alarm.kind,
        first_step=alarm.since_step,
        last_step=steps - 1 if alarm.last_step is None else alarm.last_step,
        slowdown=alarm.slowdown,
        cost_s=0.0,
        confidence=alarm.confidence,
        masked=False,
    )
