"""Heatmap of strategies and columns: speed relative to the baseline.

Its last row shows how much faster than the baseline any strategy could be at most.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from strategy_comparison.speedups import LIMIT_LABEL, Cell, Comparison, format_ratio

from laggard.analysis.report.style.canvas import INK, MUTED, is_narrow, new_figure, set_title
from laggard.analysis.tables.columns import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORMAP = "PuOr"
_FAINT = 0.55
"""Part of the largest absolute log2 ratio beyond which the text on a color is white."""

_LEAST_TOP = 1.0


def draw_comparison(comparison: Comparison, width_in: float) -> Figure:
    """Draw the table as a heatmap.

    Purple is faster than the baseline, orange slower, white the same.

    Args:
        comparison: comparison to draw; cells without runs are empty, cells with cut runs say `<`.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    rows = (*comparison.strategies, LIMIT_LABEL)
    logs = _compute_log_ratios(comparison)
    # The bound's row does not set the scale: it may exceed all measured ratios by far.
    top = max(_LEAST_TOP, float(np.nanmax(np.abs(logs[:-1]), initial=0.0)))
    figure = new_figure(width_in, 1.1 + 0.3 * len(rows) + (0.5 if is_narrow(width_in) else 0.0))
    axes = figure.add_subplot()
    axes.imshow(
        np.clip(logs, -top, top), cmap=_COLORMAP, norm=TwoSlopeNorm(0.0, -top, top), aspect="auto"
    )
    for row, name in enumerate(rows):
        for column, continuum in enumerate(comparison.columns):
            text = _format_cell(comparison, name, continuum)
            strong = abs(logs[row, column]) > _FAINT * top
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=8.5,
                color="white" if strong else INK,
            )
    axes.axhline(len(rows) - 1.5, color="white", linewidth=3)
    axes.axhline(len(rows) - 1.5, color=MUTED, linewidth=0.7)
    axes.set_yticks(range(len(rows)), rows)
    labels = [name.replace("_", "\n") for name in comparison.columns]
    axes.set_xticks(range(len(labels)), labels, rotation=60 if is_narrow(width_in) else 0)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    set_title(axes, f"Speed relative to {comparison.baseline} (times as fast)", width_in)
    return figure


def _compute_log_ratios(comparison: Comparison) -> FloatArray:
    """Return log2 of every ratio, shape [strategies + 1, columns]; NaN without a ratio."""
    rows = [
        [_get_ratio(comparison.cells.get((strategy, column))) for column in comparison.columns]
        for strategy in comparison.strategies
    ]
    rows.append([comparison.bounds.get(column, math.nan) for column in comparison.columns])
    return np.log2(np.asarray(rows, dtype=np.float64))


def _get_ratio(cell: Cell | None) -> float:
    return math.nan if cell is None else cell.ratio


def _format_cell(comparison: Comparison, row: str, column: str) -> str:
    if row == LIMIT_LABEL and column in comparison.bounds:
        return f"{comparison.bounds[column]:.1f}"
    cell = comparison.cells.get((row, column))
    return "" if cell is None else format_ratio(cell)
