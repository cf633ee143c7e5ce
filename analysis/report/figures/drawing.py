"""Drawing and saving of all figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.figure_kind import Analysis, FigureKind, FigureTitle
from laggard.analysis.report.style.canvas import NARROW_IN, WIDE_IN, house_style, to_png, to_svg
from laggard.analysis.tables.load_run import RunData
from laggard.core.files.output_files import write_atomically, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class DrawnFigure:
    """One figure, drawn for a desktop screen and for a phone.

    Attributes:
        kind: kind of the figure.
        caption: sentence about its content.
        wide_svg: SVG document that is also in `figures/`.
        narrow_svg: SVG document for a narrow screen.
    """

    kind: FigureTitle
    caption: str
    wide_svg: str
    narrow_svg: str


def draw_figure(
    kind: FigureKind[AnalysisResult],
    run: RunData,
    analysis: AnalysisResult,
    width_in: float = WIDE_IN,
) -> Figure:
    """Draw one figure in the house style, as a notebook shows it."""
    with house_style():
        return kind.draw(run, analysis, width_in)


def draw_svg(
    kind: FigureKind[AnalysisResult],
    run: RunData,
    analysis: AnalysisResult,
    width_in: float = WIDE_IN,
) -> str:
    """Draw one figure in the house style, as an SVG document.

    Examples:
        >>> from laggard.analysis.findings.analyze_run import analyze_run
        >>> from laggard.analysis.report.figures.registry import FIGURE_KINDS
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> svg = draw_svg(FIGURE_KINDS[0], run, analyze_run(run))
        >>> "<svg" in svg
        True
    """
    with house_style():
        return to_svg(kind.draw(run, analysis, width_in))


def save_figures(
    run: RunData, analysis: Analysis, folder: Path, kinds: Sequence[FigureKind[Analysis]]
) -> tuple[DrawnFigure, ...]:
    """Draw every figure and save it as `<name>.svg` and `<name>.png`.

    Args:
        run: run to draw.
        analysis: findings of the run; None if it is not analyzed.
        folder: folder for the files; it is created if needed.
        kinds: figures to draw.

    Returns:
        The figures as text, for a self-contained page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(_save_figure(kind, run, analysis, folder) for kind in kinds)


def _save_figure(
    kind: FigureKind[Analysis], run: RunData, analysis: Analysis, folder: Path
) -> DrawnFigure:
    with house_style():
        wide = kind.draw(run, analysis, WIDE_IN)
        svg = to_svg(wide)
        write_text(folder / f"{kind.name}.svg", svg)
        write_atomically(folder / f"{kind.name}.png", to_png(wide))
        narrow = to_svg(kind.draw(run, analysis, NARROW_IN))
    return DrawnFigure(kind, kind.caption(run, analysis), svg, narrow)
