"""The figures of a run: their names, how each is drawn, and the sentence that says what to see in
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.analysis.figures.captions import (
    gantt_caption,
    heatmap_caption,
    progress_caption,
    step_ecdf_caption,
    time_split_caption,
    timeline_caption,
)
from laggard.analysis.figures.gantt import draw_gantt
from laggard.analysis.figures.heatmap import draw_heatmap
from laggard.analysis.figures.progress import draw_progress, has_progress
from laggard.analysis.figures.step_ecdf import draw_step_ecdf
from laggard.analysis.figures.time_split import draw_time_split
from laggard.analysis.figures.timeline import draw_timeline
from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def of_steps(_run: Run, analysis: Analysis) -> bool:
    """Whether ranks can be compared step by step, which takes ranks in lockstep."""
    return analysis.common_steps


def of_any(_run: Run, _analysis: Analysis) -> bool:
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
        shows: whether it says something of a run.
    """

    name: str
    title: str
    description: str
    draw: Callable[[Run, Analysis, float], Figure]
    caption: Callable[[Run, Analysis], str]
    shows: Callable[[Run, Analysis], bool]


TIMELINE = "timeline"
"""Name of the figure that a report makes one that can be zoomed."""

CATALOGUE = (
    FigureKind(
        "slowdown_heatmap",
        "Who was slow, and when",
        "Heatmap with one row per rank and one for the links, steps from left to right; darker is"
        " slower.",
        draw_heatmap,
        heatmap_caption,
        of_steps,
    ),
    FigureKind(
        "time_split",
        "Where the time went",
        "Stacked bars, one per rank: seconds of fetching, preparing, computing, transfers within a"
        " tier and across tiers, waiting, and the rest.",
        draw_time_split,
        time_split_caption,
        of_any,
    ),
    FigureKind(
        TIMELINE,
        "What every rank did, and when",
        "Timeline with one row per rank: the shares of computing, transfers and waiting, from the"
        " first step to the end.",
        draw_timeline,
        timeline_caption,
        of_any,
    ),
    FigureKind(
        "step_gantt",
        "One step, close up",
        "Gantt chart of one step: the phases of every rank as bars on a common time scale.",
        draw_gantt,
        gantt_caption,
        of_steps,
    ),
    FigureKind(
        "step_ecdf",
        "How even the steps were",
        "Cumulative distribution of the time of a step and of each tier's compute in it.",
        draw_step_ecdf,
        step_ecdf_caption,
        of_steps,
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


def kinds_for(run: Run, analysis: Analysis) -> tuple[FigureKind, ...]:
    """The figures that say something of a run."""
    return tuple(kind for kind in CATALOGUE if kind.shows(run, analysis))
