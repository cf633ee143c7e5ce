"""ECDF of the latencies of an inference, of every device or tier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter

from laggard.analysis.report.figures.figure_kind import FigureKind
from laggard.analysis.report.figures.step_ecdf import (
    compute_ecdf,
    set_log_seconds_axis,
    to_step_curve,
)
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import INK, is_narrow, new_figure, set_title
from laggard.analysis.report.style.labels import sanitize_label
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.requests import read_requests
from laggard.core.text.text_format import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DEVICE_LINES = 6


def draw_latencies(run: RunData, _analysis: None, width_in: float) -> Figure:
    """Draw a curve for every device, or for every tier if there are many, and the deadline.

    Args:
        run: the run.
        _analysis: unused; every figure has the same arguments.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    narrow = is_narrow(width_in)
    figure = new_figure(width_in, 3.7 if narrow else 3.4)
    axes = figure.add_subplot()
    for number, (label, latencies) in enumerate(_group_latencies(run).items()):
        axes.plot(
            *to_step_curve(*compute_ecdf(latencies)),
            color=palette.TIERS[number % len(palette.TIERS)],
            linestyle=palette.LINES[number % len(palette.LINES)],
            label=sanitize_label(label),
        )
    deadlines = run.memoize(read_requests).deadline_s
    if len(deadlines) and np.isfinite(deadlines[0]):
        axes.axvline(float(deadlines[0]), color=INK, linewidth=1.0, linestyle=":", label="deadline")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("share of requests")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(100 * value, 2):g} %"))
    set_log_seconds_axis(axes)
    axes.grid()
    set_title(axes, "Latency of the requests", width_in)
    figure.legend(loc="outside lower center", ncols=2 if narrow else 4)
    return figure


def _group_latencies(run: RunData) -> Mapping[str, FloatArray]:
    """Return the latencies of the answered requests, by the label of their curve."""
    requests = run.memoize(read_requests)
    latencies = requests.answered_s - requests.arrived_s
    devices = sorted({*requests.rank.tolist()})
    if len(devices) <= MOST_DEVICE_LINES:
        return {run.hosts[each].host: latencies[requests.rank == each] for each in devices}
    tiers = np.array([host.tier for host in run.hosts])[requests.rank]
    return {str(tier): latencies[tiers == tier] for tier in dict.fromkeys(tiers.tolist())}


def write_latencies_caption(run: RunData, _analysis: None) -> str:
    """Say how long most requests took."""
    requests = run.memoize(read_requests)
    latencies = requests.answered_s - requests.arrived_s
    middle, late = np.nanquantile(latencies, [0.5, 0.95])
    return (
        f"Half of all requests were answered within {format_seconds(float(middle))}, 95 % within"
        f" {format_seconds(float(late))}; a steep curve means even latencies."
    )


def has_answers(run: RunData, _analysis: None) -> bool:
    """Return whether any request was answered."""
    return run.serving is not None and bool(
        np.isfinite(run.memoize(read_requests).answered_s).any()
    )


FIGURE = FigureKind(
    "latencies",
    "Distribution of latencies",
    "Cumulative distribution of the latency of requests at each device.",
    draw_latencies,
    write_latencies_caption,
    has_answers,
)
