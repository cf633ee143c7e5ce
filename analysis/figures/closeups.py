"""Windows of a run that are worth a closer look: where findings come and go, how it began, and an
ordinary step.
"""

from __future__ import annotations

from dataclasses import dataclass

from laggard.analysis.figures.gantt import median_step
from laggard.analysis.figures.long_activity import activity_of
from laggard.analysis.figures.marks import Mark, marks_of
from laggard.analysis.figures.timeline import usual_step_s
from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run
from laggard.analysis.step_clock import step_clock
from laggard.analysis.wording import seconds_text

MOST_FINDINGS = 3
MARGIN = 0.1
FIRST_STEPS = 5
STEPS_AROUND = 3


@dataclass(frozen=True)
class CloseUp:
    """A window, in seconds since the first step."""

    label: str
    first_s: float
    last_s: float


def close_ups(run: Run, analysis: Analysis) -> tuple[CloseUp, ...]:
    """The windows, most telling first; each is inside the run and has a length.

    Args:
        run: whose steps tell how long a window of a few must be.
        analysis: what was found.
    """
    end_s = run_end_s(run)
    step_s = usual_step_s(analysis) or end_s
    passing = [mark for mark in marks_of(run, analysis) if not mark.lasting][:MOST_FINDINGS]
    wanted = [
        *(_whole(mark) for mark in passing),
        *(_beginning(mark, STEPS_AROUND * step_s) for mark in passing),
        _ordinary(run, analysis, step_s, end_s),
        CloseUp("The first steps", 0.0, FIRST_STEPS * step_s),
    ]
    inside = (CloseUp(w.label, max(w.first_s, 0.0), min(w.last_s, end_s)) for w in wanted)
    return tuple(window for window in inside if window.last_s > window.first_s)


def run_end_s(run: Run) -> float:
    """Seconds from the first-step barrier to the end of the last span of training."""
    return activity_of(run).end_ns / 1e9


def _whole(mark: Mark) -> CloseUp:
    margin = MARGIN * (mark.last_s - mark.first_s)
    when = f"{seconds_text(mark.first_s)} to {seconds_text(mark.last_s)}"
    return CloseUp(f"{mark.subject}, {when}", mark.first_s - margin, mark.last_s + margin)


def _beginning(mark: Mark, around_s: float) -> CloseUp:
    return CloseUp(
        f"{mark.subject}: how it began", mark.first_s - around_s, mark.first_s + around_s
    )


def _ordinary(run: Run, analysis: Analysis, step_s: float, end_s: float) -> CloseUp:
    if not analysis.common_steps:
        return CloseUp("A moment midway", 0.5 * end_s - step_s, 0.5 * end_s + step_s)
    step = median_step(analysis)
    first_s, last_s = step_clock(run).window_s(step, step)
    return CloseUp(f"Step {step}, of median length", first_s, last_s)
