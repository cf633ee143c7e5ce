"""What is right and wrong in the alarms of one run, by the same rules as its findings; and how long
after their events they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.evaluate.ground_truth import InjectedEvent
from laggard.analysis.evaluate.matching import match_findings
from laggard.core.run_schema import Alarm, Finding


@dataclass(frozen=True)
class AlarmJudgment:
    """One run's alarms against its events; those that are not detectable, and what is paired with
    them, count neither for nor against.

    Attributes:
        found: detectable events that an alarm tells of, by its class too.
        missed: those of which none does.
        false_positives: alarms that tell of no event, or of one by another's name.
        delays: steps from the first slow one to that after which the alarm was raised, of dynamic
            events.
    """

    found: int
    missed: int
    false_positives: int
    delays: tuple[int, ...]


def judge_alarms(
    events: Sequence[InjectedEvent], alarms: Sequence[Alarm], steps: int
) -> AlarmJudgment:
    """Holds the alarms of one run against what was injected.

    Args:
        events: the truth.
        alarms: as they were told of last; who is not over then goes on to the end.
        steps: how many the run had.
    """
    findings = [to_finding(alarm, steps) for alarm in alarms]
    pairs = match_findings(events, findings)
    right = [(e, f) for e, f in pairs if events[e].label == (findings[f].family, findings[f].kind)]
    named = {e for e, _ in right}
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
    """An alarm as the finding that it would be; what it costs it does not tell."""
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
