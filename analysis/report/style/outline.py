"""Outlines around slow parts: solid for the whole run, dashed for temporary slowness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.analysis.report.style.canvas import OUTLINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SOLID = (0.0, ())
_DASHED = (0.0, (3.0, 1.5))


def choose_line_style(*, whole_run: bool) -> tuple[float, tuple[float, ...]]:
    """Return the offset and dashes of the line."""
    return _SOLID if whole_run else _DASHED


def draw_outline(
    axes: Axes, corner: tuple[float, float], width: float, height: float, *, whole_run: bool
) -> None:
    """Draw an outline on a white rim, which separates it from any background.

    It may extend beyond the edge of the axes.

    Args:
        axes: axes to draw on.
        corner: smallest x and y, in data coordinates.
        width: extent along x.
        height: extent along y.
        whole_run: if true, the line is solid.
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
