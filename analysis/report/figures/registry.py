"""Registry of the report's figures in their order, one line each."""

from __future__ import annotations

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures import (
    gantt,
    heatmap,
    latencies,
    progress,
    rounds,
    step_ecdf,
    task_accuracy,
    time_split,
    timeline,
    tokens,
)
from laggard.analysis.report.figures.figure_kind import FigureKind
from laggard.analysis.tables.load_run import RunData

FIGURE_KINDS: tuple[FigureKind[AnalysisResult], ...] = (
    heatmap.FIGURE,
    time_split.FIGURE,
    timeline.FIGURE,
    gantt.FIGURE,
    step_ecdf.FIGURE,
    progress.FIGURE,
    task_accuracy.FIGURE,
    rounds.FIGURE,
    tokens.FIGURE,
)


UNANALYZED_FIGURE_KINDS: tuple[FigureKind[None], ...] = (latencies.FIGURE,)
"""Figures of runs that train nothing."""


def select_figure_kinds(
    run: RunData, analysis: AnalysisResult
) -> tuple[FigureKind[AnalysisResult], ...]:
    """Return the figures that a run has data for."""
    return tuple(kind for kind in FIGURE_KINDS if kind.is_available(run, analysis))


def select_unanalyzed_figure_kinds(run: RunData) -> tuple[FigureKind[None], ...]:
    """Return the figures that a run without an analysis has data for."""
    return tuple(kind for kind in UNANALYZED_FIGURE_KINDS if kind.is_available(run, None))
