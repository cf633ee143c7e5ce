"""Windows of a run that deserve a closer look.

They show temporary findings and their beginnings, a typical step, and the first steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.timeline.activity_cells import get_activity
from laggard.analysis.report.timeline.cause_marks import CauseMark, build_marks
from laggard.analysis.report.timeline.typical_steps import compute_median_step_s, find_median_step
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.step_clock import get_step_clock
from laggard.core.text.text_format import format_seconds

MOST_FINDINGS = 3
# Share of a finding's length that is shown before and after it.
MARGIN = 0.1
FIRST_STEPS = 5
STEPS_AROUND = 3


@dataclass(frozen=True)
class CloseUp:
    """Window of the run, in seconds since the first step."""

    label: str
    first_s: float
    last_s: float


def plan_close_ups(run: RunData, analysis: AnalysisResult) -> tuple[CloseUp, ...]:
    """Return the windows, most informative first; each is inside the run and not empty.

    Args:
        run: run whose steps determine the length of windows of a few steps.
        analysis: findings of the run.
    """
    end_s = find_run_end_s(run)
    step_s = compute_median_step_s(analysis) or end_s
    passing = [mark for mark in build_marks(run, analysis) if not mark.whole_run][:MOST_FINDINGS]
    candidates = [
        *(_frame_whole(mark) for mark in passing),
        *(_frame_beginning(mark, STEPS_AROUND * step_s) for mark in passing),
        _frame_typical_step(run, analysis, step_s, end_s),
        CloseUp("First steps", 0.0, FIRST_STEPS * step_s),
    ]
    inside = (CloseUp(w.label, max(w.first_s, 0.0), min(w.last_s, end_s)) for w in candidates)
    return tuple(window for window in inside if window.last_s > window.first_s)


def find_run_end_s(run: RunData) -> float:
    """Return seconds from the first-step barrier to the end of the last span of training."""
    return get_activity(run).end_ns / 1e9


def _frame_whole(mark: CauseMark) -> CloseUp:
    margin = MARGIN * (mark.last_s - mark.first_s)
    when = f"{format_seconds(mark.first_s)} to {format_seconds(mark.last_s)}"
    return CloseUp(f"{mark.subject}, {when}", mark.first_s - margin, mark.last_s + margin)


def _frame_beginning(mark: CauseMark, around_s: float) -> CloseUp:
    return CloseUp(f"{mark.subject}: beginning", mark.first_s - around_s, mark.first_s + around_s)


def _frame_typical_step(
    run: RunData, analysis: AnalysisResult, step_s: float, end_s: float
) -> CloseUp:
    if not analysis.common_steps:
        return CloseUp("Middle of the run", 0.5 * end_s - step_s, 0.5 * end_s + step_s)
    step = find_median_step(analysis)
    first_s, last_s = get_step_clock(run).window_s(step, step)
    return CloseUp(f"Step {step} (median length)", first_s, last_s)
