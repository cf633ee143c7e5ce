"""ECDF of the time of a step, and of each tier's compute time in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.ecdf import EcdfLines, draw_ecdf
from laggard.analysis.report.figures.figure_kind import (
    FigureKind,
    has_common_steps,
)
from laggard.analysis.report.style.labels import format_rank_labels, list_tiers, sanitize_label
from laggard.analysis.tables.load_run import RunData
from laggard.core.text.text_format import format_ratio, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    return draw_ecdf(
        EcdfLines(
            {
                f"compute, {label}": analysis.compute_s[:, ranks]
                for label, ranks in build_compute_groups(analysis)
            },
            whole={"whole step": analysis.step_s.max(axis=1)},
        ),
        "share of steps",
        "Time of a step, and compute time in it",
        width_in,
    )


def build_compute_groups(analysis: AnalysisResult) -> list[tuple[str, list[int]]]:
    """Return the label and the ranks of each curve."""
    tiers = list_tiers(analysis.hosts)
    if len(tiers) == 1 and len(analysis.hosts) <= MOST_RANK_LINES:
        return [(label, [rank]) for rank, label in enumerate(format_rank_labels(analysis.hosts))]
    named = [(tier, [h.rank for h in analysis.hosts if h.tier == tier]) for tier in tiers]
    return [(sanitize_label(tier) if tier else "all ranks", ranks) for tier, ranks in named]


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
