"""Table rows of the stragglers."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.answer import format_slow_steps
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.step_clock import (
    StepClock,
    get_finding_window_s,
    get_step_clock,
)
from laggard.core.run_schema import Alarm, Finding
from laggard.core.text.text_format import format_percent, format_ratio, format_seconds

# Further findings are only in stragglers.json.
MOST_ROWS = 60


@dataclass(frozen=True)
class StragglerRow:
    """Row of one finding, as text."""

    who: str
    what: str
    when: str
    slowdown: str
    cost: str
    confidence: str
    masked: bool


def build_straggler_rows(run: RunData, analysis: AnalysisResult) -> tuple[StragglerRow, ...]:
    """Return rows of the most costly findings; masked ones (under 1 %) come last."""
    clock = get_step_clock(run)
    order = sorted(analysis.findings, key=lambda f: (f.masked, -f.cost_s))
    return tuple(_build_row(run, finding, clock, analysis) for finding in order[:MOST_ROWS])


def _build_row(
    run: RunData, finding: Finding, clock: StepClock, analysis: AnalysisResult
) -> StragglerRow:
    share = format_percent(finding.cost_s / analysis.makespan_s) if analysis.makespan_s > 0 else "?"
    return StragglerRow(
        who=_format_subject(finding),
        what=finding.family + (" (masked)" if finding.masked else ""),
        when=_format_time(run, finding, clock),
        slowdown=format_ratio(finding.slowdown),
        cost=f"{format_seconds(finding.cost_s)} ({share})",
        confidence=format_percent(finding.confidence),
        masked=finding.masked,
    )


def _format_subject(finding: Finding) -> str:
    if finding.link is not None:
        return f"{finding.link[0]} → {finding.link[1]}"
    if finding.host is None:
        return "all links together" if finding.rank is None else f"rank {finding.rank}"
    return finding.host if finding.rank is None else f"{finding.host} (rank {finding.rank})"


def _format_time(run: RunData, finding: Finding, clock: StepClock) -> str:
    alarm_time = _format_alarm_time(run, finding)
    if finding.kind == "deterministic":
        return f"the whole run{alarm_time}"
    start, end = get_finding_window_s(run, finding, clock)
    steps = format_slow_steps((finding.first_step, finding.last_step), finding.slow_steps)
    return f"{format_seconds(start)} to {format_seconds(end)}, {steps}{alarm_time}"


def _format_alarm_time(run: RunData, finding: Finding) -> str:
    """Return the time of the live alarm about the finding, or ""."""
    alarm = find_alarm(run, finding)
    return (
        ""
        if alarm is None or alarm.reported_s is None
        else f"; reported live at {format_seconds(alarm.reported_s)}"
    )


def find_alarm(run: RunData, finding: Finding) -> Alarm | None:
    """Return the first alarm about a finding, or None.

    The two have the same rank, family and kind, and overlapping steps.
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
            # For temporary slowness the tiers are not compared: the live alarm may name no link.
            and (
                finding.kind == "dynamic"
                or _list_link_tiers(run, alarm) == _list_link_tiers(run, finding)
            )
        ):
            return alarm
    return None


def _list_link_tiers(run: RunData, alarm_time: Alarm | Finding) -> frozenset[str]:
    """Return the tiers that a link connects.

    If a tier pair is slow throughout, alarm and finding may name different links of the pair.
    """
    tiers = {host.host: host.tier for host in run.hosts}
    return frozenset(tiers.get(end, end) for end in alarm_time.link or ())
