"""ECDF of the latencies of an inference, of every device or tier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from laggard.analysis.report.figures.ecdf import EcdfLines, draw_ecdf
from laggard.analysis.report.figures.figure_kind import FigureKind
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
    deadlines = run.memoize(read_requests).deadline_s
    has_deadline = len(deadlines) > 0 and bool(np.isfinite(deadlines[0]))
    return draw_ecdf(
        EcdfLines(
            {sanitize_label(label): each for label, each in _group_latencies(run).items()},
            limits_s={"deadline": float(deadlines[0])} if has_deadline else {},
        ),
        "share of requests",
        "Latency of the requests",
        width_in,
    )


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
