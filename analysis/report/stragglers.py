"""The stragglers as table rows."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run
from laggard.analysis.step_clock import StepClock, finding_window_s, step_clock
from laggard.analysis.wording import percent_text, ratio_text, seconds_text
from laggard.run_schema import Alarm, Finding

MOST_ROWS = 60


@dataclass(frozen=True)
class StragglerRow:
    """One finding, in words."""

    who: str
    what: str
    when: str
    slowdown: str
    cost: str
    confidence: str
    masked: bool


def straggler_rows(run: Run, analysis: Analysis) -> tuple[StragglerRow, ...]:
    """Rows of the dearest findings; those under 1 % last."""
    clock = step_clock(run)
    order = sorted(analysis.findings, key=lambda f: (f.masked, -f.cost_s))
    return tuple(_row(run, finding, clock, analysis) for finding in order[:MOST_ROWS])


def _row(run: Run, finding: Finding, clock: StepClock, analysis: Analysis) -> StragglerRow:
    share = percent_text(finding.cost_s / analysis.makespan_s) if analysis.makespan_s > 0 else "?"
    return StragglerRow(
        who=_who(finding),
        what=finding.family + (" (masked)" if finding.masked else ""),
        when=_when(run, finding, clock),
        slowdown=ratio_text(finding.slowdown),
        cost=f"{seconds_text(finding.cost_s)} ({share})",
        confidence=percent_text(finding.confidence),
        masked=finding.masked,
    )


def _who(finding: Finding) -> str:
    if finding.link is not None:
        return f"{finding.link[0]} → {finding.link[1]}"
    if finding.host is None:
        return "all links together" if finding.rank is None else f"rank {finding.rank}"
    return finding.host if finding.rank is None else f"{finding.host} (rank {finding.rank})"


def _when(run: Run, finding: Finding, clock: StepClock) -> str:
    told = _told(run, finding)
    if finding.kind == "deterministic":
        return f"the whole run{told}"
    start, end = finding_window_s(run, finding, clock)
    return (
        f"{seconds_text(start)} to {seconds_text(end)}, steps"
        f" {finding.first_step}-{finding.last_step}{told}"
    )


def _told(run: Run, finding: Finding) -> str:
    """When it was told of while the run went on."""
    alarm = alarm_of(run, finding)
    return (
        ""
        if alarm is None or alarm.told_s is None
        else f"; told of at {seconds_text(alarm.told_s)}"
    )


def alarm_of(run: Run, finding: Finding) -> Alarm | None:
    """The first alarm that told of a finding: of the same place, family and kind, and of some of
    its steps.
    """
    for alarm in run.alarms:
        alike = (alarm.rank, alarm.family, alarm.kind) == (
            finding.rank,
            finding.family,
            finding.kind,
        )
        begun = alarm.since_step <= finding.last_step
        going = alarm.last_step is None or alarm.last_step >= finding.first_step
        if (
            alike
            and begun
            and going
            and (finding.kind == "dynamic" or _between(run, alarm) == _between(run, finding))
        ):
            return alarm
    return None


def _between(run: Run, told: Alarm | Finding) -> frozenset[str]:
    """The tiers that a link lies between: of the links of a pair that is slow all along, each may
    name another.
    """
    tiers = {host.host: host.tier for host in run.hosts}
    return frozenset(tiers.get(end, end) for end in told.link or ())
