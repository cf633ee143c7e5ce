"""Outlines around what was slow: solid where it lasted the whole run, dashed where it came and
went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.analysis.figures.canvas import OUTLINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SOLID = (0.0, ())
_DASHED = (0.0, (3.0, 1.5))


def line_style(*, lasting: bool) -> tuple[float, tuple[float, ...]]:
    """Offset and dashes of the line."""
    return _SOLID if lasting else _DASHED


def draw_outline(
    axes: Axes, corner: tuple[float, float], width: float, height: float, *, lasting: bool
) -> None:
    """Draws one, on a white rim that sets it off from whatever is below; also over the edge of the
    axes.

    Args:
        axes: where.
        corner: least x and y, in data coordinates.
        width: along x.
        height: along y.
        lasting: whether it is solid.
    """
    from matplotlib.patches import Rectangle

    for colour, thickness, style in (
        ("white", 3.2, _SOLID),
        (OUTLINE, 1.6, line_style(lasting=lasting)),
    ):
        axes.add_patch(
            Rectangle(
                corner,
                width,
                height,
                fill=False,
                edgecolor=colour,
                linewidth=thickness,
                linestyle=style,
                clip_on=False,
                zorder=5,
            )
        )
