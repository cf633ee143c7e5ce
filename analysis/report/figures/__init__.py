"""Figures of a run, one module each; `save_figures` saves them."""

from laggard.analysis.report.figures.drawing import DrawnFigure, draw_figure, draw_svg, save_figures
from laggard.analysis.report.figures.registry import (
    FIGURE_KINDS,
    TIMELINE,
    FigureKind,
    select_figure_kinds,
)

__all__ = [
    "FIGURE_KINDS",
    "TIMELINE",
    "DrawnFigure",
    "FigureKind",
    "draw_figure",
    "draw_svg",
    "save_figures",
    "select_figure_kinds",
]
