"""Gantt chart of one step of median length: activity of every rank, and the last arrivals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Patch

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.figure_kind import (
    FigureKind,
    format_host,
    has_common_steps,
)
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import INK, is_narrow, new_figure, set_title
from laggard.analysis.report.style.labels import format_rank_labels, row_height_in, select_ranks
from laggard.analysis.report.style.palette import WAIT
from laggard.analysis.report.timeline.typical_steps import find_median_step
from laggard.analysis.tables.columns import FloatArray, IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.collective_waits import find_latest_arrivals
from laggard.core.span_schema import NO_GROUP, Lane, Phase
from laggard.core.text.text_format import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RANKS = 40
# Kinds whose longest bar is below this share of the step are not drawn.
NEGLIGIBLE = 2e-3
_MS = 1e-6


@dataclass(frozen=True)
class GanttBars:
    """Bars of one color: rank, start and length in milliseconds after the step began, [N] each."""

    paint: palette.Paint
    rank: IntArray
    start_ms: FloatArray
    length_ms: FloatArray
    lane: Lane = Lane.MAIN


def build_step_bars(spans: SpanColumns, step: int) -> tuple[list[GanttBars], FloatArray]:
    """Return the bars of one step.

    Args:
        spans: spans of a run.
        step: number of the step.

    Returns:
        Bars by color, and the arrival of the last rank at each collective, in milliseconds after
        the step began.
    """
    rows = spans.where((spans.step == step) & (spans.phase != Phase.EVALUATE.code))
    if not len(rows):
        return [], np.array([], dtype=np.float64)
    zero = int(rows.start_ns.min())
    communication = rows.phase == Phase.COMM.code
    bars: list[GanttBars] = []
    for phase, paint in palette.PHASES.items():
        if phase not in {Phase.COMM, Phase.EVALUATE}:
            bars += _build_bars(paint, rows.where(rows.phase == phase.code), zero)
    main = rows.where(communication & (rows.lane == Lane.MAIN))
    latest = find_latest_arrivals(main)
    waited = np.clip(latest - main.start_ns, 0, main.dur_ns)
    bars.append(_build_bar(palette.WAIT, main, main.start_ns - zero, waited))
    bars.append(
        _build_bar(palette.TRANSFER, main, main.start_ns + waited - zero, main.dur_ns - waited)
    )
    bars += _build_bars(
        palette.TRANSFER, rows.where(communication & (rows.lane != Lane.MAIN)), zero, Lane.BUCKETS
    )
    arrivals = np.unique(latest[main.group != NO_GROUP]).astype(np.float64)
    least = NEGLIGIBLE * int(rows.end_ns.max() - zero) * _MS
    return [b for b in bars if b.length_ms.max(initial=0.0) > least], (arrivals - zero) * _MS


def find_last_arrival(spans: SpanColumns, step: int) -> int:
    """Return the rank that arrived last at the collective with the longest total wait.

    The result is -1 if no rank waited.

    Args:
        spans: spans of a run.
        step: number of the step.
    """
    rows = spans.where(
        (spans.step == step) & (spans.phase == Phase.COMM.code) & (spans.lane == Lane.MAIN)
    )
    rows = rows.where(rows.group != NO_GROUP)
    waited = np.clip(find_latest_arrivals(rows) - rows.start_ns, 0, rows.dur_ns)
    if not waited.any():
        return -1
    groups, instance = np.unique(rows.group, return_inverse=True)
    longest = rows.where(
        rows.group == groups[int(np.argmax(np.bincount(instance, weights=waited)))]
    )
    # The last rank to start the collective is the one that the others waited for.
    return int(longest.rank[int(np.argmax(longest.start_ns))])


def draw_gantt(run: RunData, analysis: AnalysisResult, width_in: float) -> Figure:
    """Draw the step of median length.

    Args:
        run: run with spans.
        analysis: result that determines the median step.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    narrow = is_narrow(width_in)
    step = find_median_step(analysis)
    bars, arrivals = build_step_bars(run.spans.of_steps(step, step), step)
    world = len(analysis.hosts)
    shown = select_ranks(world, MOST_RANKS)
    figure = new_figure(
        width_in, 1.6 + row_height_in(len(shown)) * len(shown) + (0.35 if narrow else 0.0)
    )
    axes = figure.add_subplot()
    for group in bars:
        _draw_bars(axes, group, shown)
    for arrival in arrivals:
        axes.axvline(arrival, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
    labels = format_rank_labels(analysis.hosts, 20 if narrow else 26)
    axes.set_yticks(range(len(shown)), [labels[rank] for rank in shown])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.margins(x=0.01)
    axes.set_xlim(left=0)
    rest = "" if len(shown) == world else f"\n({len(shown)} of {world} ranks shown)"
    axes.set_xlabel(f"milliseconds since the step began{rest}")
    axes.grid(axis="x")
    set_title(axes, f"Step {step} (median length)", width_in)
    _add_legend(figure, bars, len(arrivals) > 0, 3 if narrow else 5)
    return figure


def _build_bars(
    paint: palette.Paint, rows: SpanColumns, zero: int, lane: Lane = Lane.MAIN
) -> list[GanttBars]:
    return [_build_bar(paint, rows, rows.start_ns - zero, rows.dur_ns, lane)] if len(rows) else []


def _build_bar(
    paint: palette.Paint,
    rows: SpanColumns,
    start: IntArray,
    length: IntArray,
    lane: Lane = Lane.MAIN,
) -> GanttBars:
    return GanttBars(paint, rows.rank, np.multiply(start, _MS), np.multiply(length, _MS), lane)


def _draw_bars(axes: Axes, bars: GanttBars, shown: IntArray) -> None:
    main = bars.lane == Lane.MAIN
    keep = np.isin(bars.rank, shown)
    row = np.searchsorted(shown, bars.rank[keep])
    # Background transfers are a thin bar below the rank's main bar.
    axes.barh(
        row + (0.0 if main else 0.41),
        bars.length_ms[keep],
        left=bars.start_ms[keep],
        height=0.62 if main else 0.14,
        color=bars.paint.color,
        hatch=bars.paint.hatch or None,
        edgecolor=palette.EDGE if bars.paint.hatch else "none",
        linewidth=0.4 if bars.paint.hatch else 0.0,
    )


def _add_legend(figure: Figure, bars: list[GanttBars], arrivals: bool, columns: int) -> None:
    paints = dict.fromkeys(b.paint for b in bars)
    handles: list[object] = [
        Patch(
            facecolor=p.color,
            hatch=p.hatch or None,
            edgecolor=palette.EDGE,
            linewidth=0.4,
            label=p.label,
        )
        for p in paints
    ]
    if arrivals:
        from matplotlib.lines import Line2D

        handles.append(
            Line2D(
                [], [], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), label="last rank arrives"
            )
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def write_gantt_caption(run: RunData, analysis: AnalysisResult) -> str:
    """Describe the content of the Gantt chart."""
    step = find_median_step(analysis)
    bars, _ = build_step_bars(run.spans.of_steps(step, step), step)
    waited = np.zeros(len(analysis.hosts))
    for group in bars:
        if group.paint is WAIT:
            np.add.at(waited, group.rank, group.length_ms / 1000)
    if not waited.any():
        return f"In step {step}, which has the median length, no rank waited for another."
    most, last = int(np.argmax(waited)), find_last_arrival(run.spans.of_steps(step, step), step)
    return (
        f"In step {step}, which has the median length, {format_host(analysis, most)} waited"
        f" {format_seconds(float(waited[most]))} (hatched) for the last rank to arrive. The"
        f" collective with the longest total wait began when {format_host(analysis, last)} arrived."
        " A rank begins a step as soon as its previous one has ended, so starts differ."
    )


FIGURE = FigureKind(
    "step_gantt",
    "One step in detail",
    "Gantt chart of one step: the phases of every rank as bars on a common time scale.",
    draw_gantt,
    write_gantt_caption,
    has_common_steps,
)
