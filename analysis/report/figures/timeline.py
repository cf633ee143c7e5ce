"""Timeline of every rank's activity, from the first step to the end.

In the report a zoomable version replaces the picture if scripts can run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.figure_kind import (
    FigureKind,
    is_always_available,
)
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import OUTLINE, is_narrow, new_figure, set_title
from laggard.analysis.report.style.labels import (
    format_rank_labels,
    row_height_in,
)
from laggard.analysis.report.style.outline import choose_line_style, draw_outline
from laggard.analysis.report.timeline.activity import RankActivity
from laggard.analysis.report.timeline.activity_cells import get_activity
from laggard.analysis.report.timeline.cause_marks import (
    CauseMark,
    build_marks,
    group_rows,
    select_timeline_ranks,
)
from laggard.analysis.report.timeline.typical_steps import compute_median_step_s
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.text.text_format import format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pixels = npt.NDArray[np.uint8]

_COLUMNS = 720
# Columns that a step needs to show its phases, and steps that a column mixes otherwise.
_STEP_COLUMNS = 12
_STEPS_MIXED = 2
_ROW_PIXELS = 20
_BAR_PIXELS = 16
_STRIP_PIXELS = 3


def draw_timeline(run: RunData, analysis: AnalysisResult, width_in: float) -> Figure:
    """Draw the whole run, one row per rank.

    Of very many ranks, slow ones and evenly spaced others are shown.

    Args:
        run: run with spans.
        analysis: findings to outline.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    narrow = is_narrow(width_in)
    activity, marks = get_activity(run), build_marks(run, analysis)
    world = len(analysis.hosts)
    shown = select_timeline_ranks(world, marks)
    figure = new_figure(
        width_in, 1.6 + row_height_in(len(shown)) * len(shown) + (0.5 if narrow else 0.0)
    )
    axes = figure.add_subplot()
    end_s = activity.end_ns / 1e9
    columns = _COLUMNS // 2 if narrow else _COLUMNS
    cells = choose_cell_count(analysis, end_s, columns)
    shares = activity.compute_shares(shown, 0.0, activity.end_ns, cells)
    # Cells are repeated to several pixels, so that hatches stay fine in wide cells.
    pixels = paint_shares(activity, np.repeat(shares, -(-columns // cells), axis=0))
    axes.imshow(
        pixels,
        aspect="auto",
        interpolation="nearest",
        extent=(0.0, end_s, len(shown) - 0.5, -0.5),
        origin="upper",
    )
    _draw_outlines(axes, marks, shown, end_s)
    labels = format_rank_labels(analysis.hosts, 20 if narrow else 26)
    axes.set_yticks(range(len(shown)), [labels[rank] for rank in shown])
    axes.tick_params(axis="y", length=0)
    rest = "" if len(shown) == world else f"\n({len(shown)} of {world} ranks shown)"
    axes.set_xlabel(f"seconds since the first step{rest}")
    set_title(axes, "Activity of every rank over time", width_in)
    _add_legend(figure, activity, marks, 2 if narrow else 6)
    return figure


def choose_cell_count(analysis: AnalysisResult, end_s: float, most: int) -> int:
    """Return a number of columns that shows the phases of steps, if there is room for them.

    Otherwise each column mixes whole steps, so that the picture does not flicker.

    Args:
        analysis: result with the length of steps.
        end_s: length of the run.
        most: number of columns that can be distinguished.
    """
    steps = end_s / max(compute_median_step_s(analysis), 1e-9)
    return (
        most if steps * _STEP_COLUMNS <= most else min(most // 3, max(int(steps / _STEPS_MIXED), 1))
    )


def paint_shares(activity: RankActivity, shares: FloatArray) -> Pixels:
    """Return shares as stacked colors.

    Args:
        activity: activity that the shares belong to.
        shares: shares of time, [cells, R, series].

    Returns:
        An image, [R * pixels of a row, cells, 3]. Waits and pauses are hatched, and time without a
        record is white.
    """
    cells, rows, _ = shares.shape
    kinds = len(activity.kinds)
    ink = np.array([to_rgb(paint.color) for paint in activity.kinds] + [(1.0, 1.0, 1.0)])
    hatched = np.array([bool(paint.hatch) for paint in activity.kinds] + [False])
    bar = _BAR_PIXELS - (_STRIP_PIXELS + 1 if activity.has_background else 0)
    height = (np.arange(bar)[::-1] + 0.5) / bar
    x, y = np.meshgrid(np.arange(cells), np.arange(bar))
    image = np.ones((rows, _ROW_PIXELS, cells, 3))
    for row in range(rows):
        stacked = np.cumsum(shares[:, row, :kinds], axis=1)
        # A pixel has the first kind whose cumulative share exceeds its height.
        kind = (stacked[None] <= height[:, None, None] + 1e-9).sum(axis=2)
        colors = ink[kind]
        colors[hatched[kind] & ((x + y) % 5 == 0)] = to_rgb(palette.HATCH)
        image[row, 2 : 2 + bar] = colors
        if activity.has_background:
            part = shares[:, row, kinds, None]
            image[row, 3 + bar : 3 + bar + _STRIP_PIXELS] = 1.0 - part * (
                1.0 - np.array(to_rgb(palette.BACKGROUND_TRANSFER.color))
            )
    return np.asarray(np.round(255 * image), dtype=np.uint8).reshape(rows * _ROW_PIXELS, cells, 3)


def _draw_outlines(axes: Axes, marks: tuple[CauseMark, ...], shown: IntArray, end_s: float) -> None:
    """Draw solid outlines for the whole run and dashed ones for temporary slowness."""
    for mark in marks:
        width = max(mark.last_s - mark.first_s, end_s / 200)
        for first, last in group_rows(mark.ranks, shown):
            draw_outline(
                axes,
                (mark.first_s, first - 0.45),
                width,
                last - first + 0.9,
                whole_run=mark.whole_run,
            )


def _add_legend(
    figure: Figure, activity: RankActivity, marks: tuple[CauseMark, ...], columns: int
) -> None:
    paints = (
        (*activity.kinds, palette.BACKGROUND_TRANSFER)
        if activity.has_background
        else activity.kinds
    )
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
    for whole_run, label in ((True, "slow for the whole run"), (False, "temporarily slow")):
        if any(mark.whole_run == whole_run and mark.ranks for mark in marks):
            style = choose_line_style(whole_run=whole_run)
            handles.append(
                Patch(
                    facecolor="none", edgecolor=OUTLINE, linewidth=1.4, linestyle=style, label=label
                )
            )
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def write_timeline_caption(run: RunData, analysis: AnalysisResult) -> str:
    """Describe the content of the timeline.

    The caption names the largest share, and the share that a temporary straggler changes most.
    """
    activity = get_activity(run)
    if not activity.kinds:
        return "No rank recorded any activity."
    whole = _compute_mix(activity, 0.0, activity.end_ns)
    most = int(np.argmax(whole))
    text = (
        "A row is a rank, and time runs to the right; the colors of a column are the shares of"
        f" the rank's activities. {activity.kinds[most].label.capitalize()} has the largest share"
        f" of all ranks' time ({format_percent(float(whole[most]))})"
    )
    passing = next((mark for mark in build_marks(run, analysis) if not mark.whole_run), None)
    if passing is None:
        return text + "."
    inside = _compute_mix(activity, passing.first_s * 1e9, passing.last_s * 1e9)
    changed = int(np.argmax(inside - whole))
    window = f"{format_seconds(passing.first_s)} to {format_seconds(passing.last_s)}"
    return (
        f"{text}. In the dashed outline ({window}), {activity.kinds[changed].label} takes"
        f" {format_percent(float(inside[changed]))} of the time, compared with"
        f" {format_percent(float(whole[changed]))} in the whole run."
    )


def _compute_mix(activity: RankActivity, first_ns: float, last_ns: float) -> FloatArray:
    """Return the shares of all ranks' time in a window, by kind."""
    mix: FloatArray = activity.compute_shares(activity.ranks, first_ns, last_ns, 1)[0].mean(axis=0)[
        : len(activity.kinds)
    ]
    return mix


FIGURE = FigureKind(
    "timeline",
    "Activity of every rank over time",
    "Timeline with one row per rank: the shares of computing, transfers and waiting, from the"
    " first step to the end.",
    draw_timeline,
    write_timeline_caption,
    is_always_available,
)
