"""The figures of a run: their names, how each is drawn, and the sentence that says what to see in
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.captions import (
    gantt_caption,
    heatmap_caption,
    progress_caption,
    step_ecdf_caption,
    time_split_caption,
    timeline_caption,
)
from laggard.analysis.report.figures.gantt import draw_gantt
from laggard.analysis.report.figures.heatmap import draw_heatmap
from laggard.analysis.report.figures.progress import draw_progress, has_progress
from laggard.analysis.report.figures.step_ecdf import draw_step_ecdf
from laggard.analysis.report.figures.time_split import draw_time_split
from laggard.analysis.report.figures.timeline import draw_timeline
from laggard.analysis.tables.load_run import RunData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def has_common_steps(_run: RunData, analysis: AnalysisResult) -> bool:
    """Whether ranks can be compared step by step, which takes ranks in lockstep."""
    return analysis.common_steps


def is_always_available(_run: RunData, _analysis: AnalysisResult) -> bool:
    """A figure that every run has."""
    return True


@dataclass(frozen=True)
class FigureKind:
    """One figure of the catalogue.

    Attributes:
        name: stem of its files.
        title: its heading in the report.
        description: what kind of picture it is, for those who cannot see it.
        draw: draws it at a width in inches.
        caption: what to see in it, in a sentence.
        is_available: whether it says something of a run.
    """

    name: str
    title: str
    description: str
    draw: Callable[[RunData, AnalysisResult, float], Figure]
    caption: Callable[[RunData, AnalysisResult], str]
    is_available: Callable[[RunData, AnalysisResult], bool]


TIMELINE = "timeline"
"""Name of the figure that a report makes one that can be zoomed."""

FIGURE_KINDS = (
    FigureKind(
        "slowdown_heatmap",
        "Who was slow, and when",
        "Heatmap with one row per rank and one for the links, steps from left to right; darker is"
        " slower.",
        draw_heatmap,
        heatmap_caption,
        has_common_steps,
    ),
    FigureKind(
        "time_split",
        "Where the time went",
        "Stacked bars, one per rank: seconds of fetching, preparing, computing, transfers within a"
        " tier and across tiers, waiting, and the rest.",
        draw_time_split,
        time_split_caption,
        is_always_available,
    ),
    FigureKind(
        TIMELINE,
        "What every rank did, and when",
        "Timeline with one row per rank: the shares of computing, transfers and waiting, from the"
        " first step to the end.",
        draw_timeline,
        timeline_caption,
        is_always_available,
    ),
    FigureKind(
        "step_gantt",
        "One step, close up",
        "Gantt chart of one step: the phases of every rank as bars on a common time scale.",
        draw_gantt,
        gantt_caption,
        has_common_steps,
    ),
    FigureKind(
        "step_ecdf",
        "How even the steps were",
        "Cumulative distribution of the time of a step and of each tier's compute in it.",
        draw_step_ecdf,
        step_ecdf_caption,
        has_common_steps,
    ),
    FigureKind(
        "progress",
        "What the training achieved",
        "Two line charts over time: accuracy of every evaluation, and training loss.",
        draw_progress,
        progress_caption,
        has_progress,
    ),
)


def select_figure_kinds(run: RunData, analysis: AnalysisResult) -> tuple[FigureKind, ...]:
    """The figures that say something of a run."""
    return tuple(kind for kind in FIGURE_KINDS if kind.is_available(run, analysis))
