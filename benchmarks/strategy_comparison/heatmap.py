"""Strategy x column: how many times as fast as the baseline, and in the last row how many times
that could be at most.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from strategy_comparison.speedups import Cell, Comparison, format_ratio

from laggard.analysis.report.style.canvas import INK, MUTED, is_narrow, new_figure, set_title
from laggard.analysis.tables.columns import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORMAP = "PuOr"
_FAINT = 0.55
"""Log2 of a ratio beyond which the text on its colour is white, as a part of the largest."""

_LEAST_TOP = 1.0


def draw_comparison(comparison: Comparison, width_in: float) -> Figure:
    """Draws the table as a heatmap: purple is faster than the baseline, orange slower, white the
    same.

    Args:
        comparison: what is drawn; a cell without runs is left empty, one whose runs were cut says
            `<`.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    rows = (*comparison.strategies, "bound")
    logs = _compute_log_ratios(comparison)
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
    set_title(axes, f"How many times as fast as {comparison.baseline}", width_in)
    return figure


def _compute_log_ratios(comparison: Comparison) -> FloatArray:
    """Log2 of every ratio, shape [strategies + 1, columns]; NaN where there is none."""
    rows = [
        [_get_ratio(comparison.cells.get((strategy, column))) for column in comparison.columns]
        for strategy in comparison.strategies
    ]
    rows.append([comparison.bounds.get(column, math.nan) for column in comparison.columns])
    return np.log2(np.asarray(rows, dtype=np.float64))


def _get_ratio(cell: Cell | None) -> float:
    return math.nan if cell is None else cell.ratio


def _format_cell(comparison: Comparison, row: str, column: str) -> str:
    if row == "bound" and column in comparison.bounds:
        return f"{comparison.bounds[column]:.1f}"
    cell = comparison.cells.get((row, column))
    return "" if cell is None else format_ratio(cell)
