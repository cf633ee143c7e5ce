"""Time split of every rank, as stacked bars.

They add up to the makespan plus the pauses for evaluation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.figure_kind import (
    FigureKind,
    format_host,
    is_always_available,
)
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import is_narrow, new_figure, set_title
from laggard.analysis.report.style.labels import format_rank_labels, row_height_in, select_ranks
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.text.text_format import format_percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 40
# Parts below this share of the total are not drawn, and have no entry in the legend.
NEGLIGIBLE = 2e-3


def draw_time_split(_run: RunData, analysis: AnalysisResult, width_in: float) -> Figure:
    """Draw one bar per rank; of very many ranks, evenly spaced ones.

    Args:
        _run: unused; every figure has the same arguments.
        analysis: result with the time split.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    narrow = is_narrow(width_in)
    world = len(analysis.hosts)
    shown = select_ranks(world, MOST_BARS)
    figure = new_figure(
        width_in, 1.45 + row_height_in(len(shown)) * len(shown) + (0.5 if narrow else 0.0)
    )
    axes = figure.add_subplot()
    left = np.zeros(len(shown))
    total = float(analysis.time_split.total_s.max(initial=0.0))
    for paint, seconds in _list_parts(analysis):
        if float(seconds.max(initial=0.0)) < NEGLIGIBLE * total:
            continue
        axes.barh(
            np.arange(len(shown)),
            seconds[shown],
            left=left,
            height=0.74,
            color=paint.color,
            hatch=paint.hatch or None,
            edgecolor=palette.EDGE if paint.hatch else "white",
            linewidth=0.4,
            label=paint.label,
        )
        left = left + seconds[shown]
    labels = format_rank_labels(analysis.hosts, 20 if narrow else 26)
    axes.set_yticks(np.arange(len(shown)), [labels[i] for i in shown])
    axes.tick_params(axis="y", length=0)
    # Reversed limits put the first rank on top.
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.margins(x=0.01)
    axes.set_xlabel(
        "seconds" if len(shown) == world else f"seconds\n({len(shown)} of {world} ranks shown)"
    )
    axes.grid(axis="x")
    set_title(axes, "Time split of every rank", width_in)
    figure.legend(loc="outside lower center", ncols=2 if narrow else 9)
    return figure


def _list_parts(analysis: AnalysisResult) -> list[tuple[palette.Paint, FloatArray]]:
    split = analysis.time_split
    return [
        (palette.FETCH, split.fetch_s),
        (palette.PREP, split.prep_s),
        (palette.COMPUTE, split.compute_s),
        (palette.INTERCONNECT, split.interconnect_s),
        (palette.NETWORK, split.network_s),
        (palette.WAIT, split.wait_s),
        (palette.IDLE, split.idle_s),
        (palette.OTHER, split.other_s),
        (palette.EVALUATE, split.evaluate_s),
    ]


def write_time_split_caption(_run: RunData, analysis: AnalysisResult) -> str:
    """Describe the content of the time split."""
    split = analysis.time_split
    least = int(np.argmin(split.wait_s))
    most = int(np.argmax(split.wait_s))
    total = float(split.total_s[most])
    if total <= 0 or (split.wait_s[most] - split.wait_s[least]) / total < 0.02:
        return "All ranks wait about equally long: no rank makes the others wait."
    if not analysis.common_steps:
        return (
            f"{format_host(analysis, most)} waits for others"
            f" {format_percent(float(split.wait_s[most]) / total)} of the time."
        )
    return (
        f"{format_host(analysis, most)} waits for the others"
        f" {format_percent(float(split.wait_s[most]) / total)} of the time;"
        f" {format_host(analysis, least)} waits least"
        f" ({format_percent(float(split.wait_s[least]) / total)}). The rank that waits least makes"
        " the others wait."
    )


FIGURE = FigureKind(
    "time_split",
    "Time split by rank",
    "Stacked bars, one per rank: seconds of fetching, preparing, computing, transfers within a"
    " tier and between tiers, waiting, and the rest.",
    draw_time_split,
    write_time_split_caption,
    is_always_available,
)
