"""Figures of a run, one module each; `draw_all` saves them."""

from laggard.analysis.figures.catalogue import CATALOGUE, TIMELINE, FigureKind, kinds_for
from laggard.analysis.figures.drawing import DrawnFigure, draw, draw_all, draw_svg

__all__ = [
    "CATALOGUE",
    "TIMELINE",
    "DrawnFigure",
    "FigureKind",
    "draw",
    "draw_all",
    "draw_svg",
    "kinds_for",
]
