"""Draws the catalogue and saves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.figure_kind import FigureKind
from laggard.analysis.report.figures.registry import FIGURE_KINDS
from laggard.analysis.report.style.canvas import NARROW_IN, WIDE_IN, house_style, to_png, to_svg
from laggard.analysis.tables.load_run import RunData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class DrawnFigure:
    """One figure, drawn for a desk and for a phone.

    Attributes:
        kind: which figure.
        caption: what to see in it.
        wide_svg: the one that is also in `figures/`.
        narrow_svg: the same for a narrow screen.
    """

    kind: FigureKind
    caption: str
    wide_svg: str
    narrow_svg: str


def draw_figure(
    kind: FigureKind, run: RunData, analysis: AnalysisResult, width_in: float = WIDE_IN
) -> Figure:
    """One figure, in the house style, as a notebook shows it."""
    with house_style():
        return kind.draw(run, analysis, width_in)


def draw_svg(
    kind: FigureKind, run: RunData, analysis: AnalysisResult, width_in: float = WIDE_IN
) -> str:
    """One figure as an SVG document, in the house style."""
    with house_style():
        return to_svg(kind.draw(run, analysis, width_in))


def save_figures(
    run: RunData, analysis: AnalysisResult, folder: Path, kinds: Sequence[FigureKind] = FIGURE_KINDS
) -> tuple[DrawnFigure, ...]:
    """Draws every figure and saves it as `<name>.svg` and `<name>.png`.

    Args:
        run: the run.
        analysis: what was found in it.
        folder: where the files go; made if it is not there.
        kinds: which figures.

    Returns:
        The figures as text, for a page that must stand alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(_save_figure(kind, run, analysis, folder) for kind in kinds)


def _save_figure(
    kind: FigureKind, run: RunData, analysis: AnalysisResult, folder: Path
) -> DrawnFigure:
    with house_style():
        wide = kind.draw(run, analysis, WIDE_IN)
        svg = to_svg(wide)
        (folder / f"{kind.name}.svg").write_text(svg, encoding="utf-8")
        (folder / f"{kind.name}.png").write_bytes(to_png(wide))
        narrow = to_svg(kind.draw(run, analysis, NARROW_IN))
    return DrawnFigure(kind, kind.caption(run, analysis), svg, narrow)
