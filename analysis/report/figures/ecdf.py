"""Curves of cumulative shares (ECDF) over a logarithmic axis of seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import INK, is_narrow, new_figure, set_title
from laggard.analysis.tables.columns import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More points cannot be distinguished at the figure's width, and enlarge the SVG.
MOST_POINTS = 800


@dataclass(frozen=True)
class EcdfLines:
    """Lines of an ECDF, by label.

    Attributes:
        parts: values of every part, in seconds, of any shape; a thin line each.
        whole: values of the whole, in seconds; a thick line.
        limits_s: limits, such as a deadline; a dotted vertical line each.
    """

    parts: Mapping[str, FloatArray]
    whole: Mapping[str, FloatArray] = field(default_factory=dict)
    limits_s: Mapping[str, float] = field(default_factory=dict)


def draw_ecdf(lines: EcdfLines, share_label: str, title: str, width_in: float) -> Figure:
    """Draw lines with their legend.

    Args:
        lines: what is drawn.
        share_label: label of the y axis.
        title: title of the figure.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    narrow = is_narrow(width_in)
    figure = new_figure(width_in, 3.7 if narrow else 3.4)
    axes = figure.add_subplot()
    for number, (label, values) in enumerate(lines.parts.items()):
        axes.plot(
            *to_step_curve(*compute_ecdf(values)),
            color=palette.TIERS[number % len(palette.TIERS)],
            linestyle=palette.LINES[number % len(palette.LINES)],
            label=label,
        )
    for label, values in lines.whole.items():
        curve = to_step_curve(*compute_ecdf(values))
        axes.plot(*curve, color=INK, linewidth=2.4, label=label)
    for label, limit_s in lines.limits_s.items():
        axes.axvline(limit_s, color=INK, linewidth=1.0, linestyle=":", label=label)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel(share_label)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(100 * value, 2):g} %"))
    set_log_seconds_axis(axes)
    axes.grid()
    set_title(axes, title, width_in)
    figure.legend(loc="outside lower center", ncols=2 if narrow else 4)
    return figure


def compute_ecdf(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return sorted positive values and the share of values up to each.

    Long series are thinned to quantiles.
    """
    flat = np.sort(values[np.isfinite(values) & (values > 0)].ravel())
    if not flat.size:
        return flat, flat
    share = np.arange(1, flat.size + 1) / flat.size
    if flat.size > MOST_POINTS:
        chosen = np.unique(np.linspace(0, flat.size - 1, MOST_POINTS).round().astype(np.int64))
        flat, share = flat[chosen], share[chosen]
    return flat, share


def to_step_curve(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the curve as steps that begin at 0, so that it is readable even for few values."""
    rises = np.repeat(y, 2)
    return np.repeat(x, 2), np.concatenate([[0.0], rises[:-1]]) if len(y) else rises


def set_log_seconds_axis(axes: Axes) -> None:
    """Make the x axis of seconds logarithmic, with its labels in milliseconds."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = np.log10(high / low)
    # On a wide range only powers of ten have room for a label.
    digits = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=digits))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 1000:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("milliseconds (logarithmic)")
