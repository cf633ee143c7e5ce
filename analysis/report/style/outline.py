"""Outlines around what was slow: solid where it lasted the whole run, dashed where it came and
went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.analysis.report.style.canvas import OUTLINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SOLID = (0.0, ())
_DASHED = (0.0, (3.0, 1.5))


def choose_line_style(*, whole_run: bool) -> tuple[float, tuple[float, ...]]:
    """Offset and dashes of the line."""
    return _SOLID if whole_run else _DASHED


def draw_outline(
    axes: Axes, corner: tuple[float, float], width: float, height: float, *, whole_run: bool
) -> None:
    """Draws one, on a white rim that sets it off from whatever is below; also over the edge of the
    axes.

    Args:
        axes: where.
        corner: least x and y, in data coordinates.
        width: along x.
        height: along y.
        whole_run: whether it is solid.
    """
    from matplotlib.patches import Rectangle

    for color, thickness, style in (
        ("white", 3.2, _SOLID),
        (OUTLINE, 1.6, choose_line_style(whole_run=whole_run)),
    ):
        axes.add_patch(
            Rectangle(
                corner,
                width,
                height,
                fill=False,
                edgecolor=color,
                linewidth=thickness,
                linestyle=style,
                clip_on=False,
                zorder=5,
            )
        )
