"""Canvas of every figure: one style, two widths, no global pyplot state."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = Path(__file__).with_name("laggard.mplstyle")
# Widths in inches for a desktop screen and for a phone.
WIDE_IN = 8.6
NARROW_IN = 4.0
NARROW_BELOW_IN = 6.0

INK = "#1a1f27"
MUTED = "#5b6472"
OUTLINE = "#00429d"


@contextmanager
def house_style() -> Iterator[None]:
    """Apply Laggard's matplotlib settings inside the context and restore the others afterwards."""
    with mpl.rc_context(fname=STYLE):
        yield


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure with its own canvas and a layout without overlaps."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def is_narrow(width_in: float) -> bool:
    """Return True if a figure of this width is meant for a phone."""
    return width_in < NARROW_BELOW_IN


def set_title(axes: Axes, text: str, width_in: float) -> None:
    """Set the title of a wide figure; on a phone the page's heading replaces it."""
    if not is_narrow(width_in):
        axes.set_title(text)


def to_svg(figure: Figure) -> str:
    """Return the figure as an SVG document; equal figures give equal text."""
    _lay_out(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "Laggard"})
    return buffer.getvalue()


def to_png(figure: Figure) -> bytes:
    """Return the figure as a PNG image, for slides and printers without SVG."""
    _lay_out(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "Laggard"})
    return buffer.getvalue()


def _lay_out(figure: Figure) -> None:
    """Place everything once: with a layout of its own, each format would draw the figure twice."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)
