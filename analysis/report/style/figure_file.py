"""Files of figures for people: SVG or PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from laggard.analysis.report.style.canvas import house_style, to_png, to_svg
from laggard.core.errors import InputError
from laggard.core.files.output_files import write_atomically, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to an SVG or PNG file.

    Args:
        figure: a figure of the house's style.
        path: file to write; its suffix is `.svg` or `.png`.

    Raises:
        InputError: the suffix is another one.
        OSError: the file cannot be written.
    """
    require_figure_path(path)
    if path.suffix == ".svg":
        write_text(path, to_styled_svg(figure))
        return
    with house_style():
        write_atomically(path, to_png(figure))


def to_styled_svg(figure: Figure) -> str:
    """Return a figure of the house's style as an SVG document."""
    with house_style():
        return to_svg(figure)


def require_figure_path(path: Path) -> None:
    """Require a suffix of a figure.

    Raises:
        InputError: the suffix is neither `.svg` nor `.png`.
    """
    if path.suffix not in {".svg", ".png"}:
        raise InputError(f"{path}: not the name of a figure — let it end in .svg or .png")
