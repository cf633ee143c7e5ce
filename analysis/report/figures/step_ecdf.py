"""ECDF of the time of a step, and of each tier's compute time in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.figure_kind import (
    FigureKind,
    has_common_steps,
)
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import INK, is_narrow, new_figure, set_title
from laggard.analysis.report.style.labels import format_rank_labels, list_tiers, sanitize_label
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.text.text_format import format_ratio, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More points cannot be distinguished at the figure's width, and enlarge the SVG.
MOST_POINTS = 800
MOST_RANK_LINES = 6


def draw_step_ecdf(_run: RunData, analysis: AnalysisResult, width_in: float) -> Figure:
    """Draw one curve per tier and one for the whole step.

    With one tier and few ranks, each rank has a curve.

    Args:
        _run: unused; every figure has the same arguments.
        analysis: step and compute times.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    narrow = is_narrow(width_in)
    figure = new_figure(width_in, 3.7 if narrow else 3.4)
    axes = figure.add_subplot()
    for number, (label, ranks) in enumerate(build_compute_groups(analysis)):
        x, y = compute_ecdf(analysis.compute_s[:, ranks])
        color = palette.TIERS[number % len(palette.TIERS)]
        axes.plot(
            *to_step_curve(x, y),
            color=color,
            linestyle=palette.LINES[number % len(palette.LINES)],
            label=f"compute, {label}",
        )
    x, y = compute_ecdf(analysis.step_s.max(axis=1))
    axes.plot(*to_step_curve(x, y), color=INK, linewidth=2.4, label="whole step")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("share of steps")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(100 * value, 2):g} %"))
    set_log_seconds_axis(axes)
    axes.grid()
    set_title(axes, "Time of a step, and compute time in it", width_in)
    figure.legend(loc="outside lower center", ncols=2 if narrow else 4)
    return figure


def build_compute_groups(analysis: AnalysisResult) -> list[tuple[str, list[int]]]:
    """Return the label and the ranks of each curve."""
    tiers = list_tiers(analysis.hosts)
    if len(tiers) == 1 and len(analysis.hosts) <= MOST_RANK_LINES:
        return [(label, [rank]) for rank, label in enumerate(format_rank_labels(analysis.hosts))]
    named = [(tier, [h.rank for h in analysis.hosts if h.tier == tier]) for tier in tiers]
    return [(sanitize_label(tier) if tier else "all ranks", ranks) for tier, ranks in named]


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


def write_step_ecdf_caption(_run: RunData, analysis: AnalysisResult) -> str:
    """Describe the content of the distribution."""
    slowest = analysis.step_s.max(axis=1)
    middle, late = (float(q) for q in np.quantile(slowest, [0.5, 0.95]))
    text = (
        f"Half of the steps took at most {format_seconds(middle)}, 95 % at most"
        f" {format_seconds(late)}"
    )
    medians = {
        label: float(np.median(analysis.compute_s[:, ranks]))
        for label, ranks in build_compute_groups(analysis)
    }
    fast, slow = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    if len(medians) < 2 or medians[fast] <= 0:
        return text + "; a steep curve means even steps."
    ratio = format_ratio(medians[slow] / medians[fast])
    return f"{text}; in the median step, {slow} computes {ratio} as long as {fast}."


FIGURE = FigureKind(
    "step_ecdf",
    "Distribution of step times",
    "Cumulative distribution of the time of a step and of each tier's compute time in it.",
    draw_step_ecdf,
    write_step_ecdf_caption,
    has_common_steps,
)
