"""Heatmap of each rank's slowdown at each step, relative to the fastest class, with outlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from laggard.analysis.detection.families import FAMILIES
from laggard.analysis.detection.intervals import MIN_STEPS
from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.answer import select_reported_groups
from laggard.analysis.report.figures.figure_kind import (
    FigureKind,
    has_common_steps,
)
from laggard.analysis.report.style.canvas import MUTED, is_narrow, new_figure, set_title
from laggard.analysis.report.style.labels import format_rank_labels
from laggard.analysis.report.style.outline import draw_outline
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.step_clock import StepClock, get_step_clock
from laggard.core.run_schema import Finding
from laggard.core.text.text_format import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

MOST_COLUMNS = 480
MOST_LABELS = 40
# Share of the run by which the edges of adjacent rows may differ in one outline.
SAME_EDGE = 0.03
_COLORMAP = "YlOrBr"
_TICKS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0)


@dataclass(frozen=True)
class FindingOutline:
    """Box of rows and steps, all inclusive; `whole_run` is true if it covers the whole run."""

    first_row: int
    last_row: int
    first_step: int
    last_step: int
    whole_run: bool


def draw_heatmap(run: RunData, analysis: AnalysisResult, width_in: float) -> Figure:
    """Draw the heatmap; the lowest row is the collectives' transfer relative to its own baseline.

    Args:
        run: run that determines the seconds of steps.
        analysis: slowdowns and findings.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    rows = np.column_stack([analysis.slowdown, analysis.transfer_slowdown])
    binned = bin_steps(rows, MOST_COLUMNS)
    narrow = is_narrow(width_in)
    figure = new_figure(width_in, _height_in(rows.shape[1]) + (0.35 if narrow else 0.0))
    axes = figure.add_subplot()
    edges = (float(analysis.steps[0]) - 0.5, float(analysis.steps[-1]) + 0.5)
    image = axes.imshow(
        np.clip(binned.T, 1.0, None),
        cmap=_COLORMAP,
        norm=LogNorm(1.0, _find_top_ratio(binned)),
        aspect="auto",
        interpolation="nearest",
        extent=(edges[0], edges[1], rows.shape[1] - 0.5, -0.5),
    )
    axes.axhline(rows.shape[1] - 1.5, color="white", linewidth=3)
    axes.axhline(rows.shape[1] - 1.5, color=MUTED, linewidth=0.7)
    _label_rows(
        axes, [*format_rank_labels(analysis.hosts, 20 if narrow else 26), "links (collective)"]
    )
    _draw_outlines(axes, analysis)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("step")
    set_title(axes, "Slowdown of every rank at every step", width_in)
    if not narrow:
        _add_seconds_axis(axes, get_step_clock(run), edges)
    bar = figure.colorbar(
        image,
        ax=axes,
        location="bottom" if narrow else "right",
        pad=0.02,
        aspect=30,
        extend="max",
        shrink=0.95,
    )
    _set_ratio_ticks(bar, _find_top_ratio(binned))
    return figure


def bin_steps(rows: FloatArray, most: int) -> FloatArray:
    """Return means over equal groups of steps, so that at most `most` columns are drawn.

    The input has the shape [S, R], the result [<= most, R].
    """
    if len(rows) <= most:
        return rows
    firsts = np.linspace(0, len(rows), most, endpoint=False).astype(np.int64)
    counts = np.diff(np.append(firsts, len(rows)))
    known = np.nan_to_num(rows, nan=1.0, posinf=1.0)
    return np.asarray(np.add.reduceat(known, firsts, axis=0) / counts[:, None], dtype=np.float64)


def select_finding_rows(finding: Finding, analysis: AnalysisResult) -> list[int]:
    """Return the heatmap's rows of a finding: that of its rank, or that of the collective."""
    world = len(analysis.hosts)
    if FAMILIES[finding.family].uses_links or finding.rank is None:
        return [world]
    return [finding.rank] if 0 <= finding.rank < world else []


def _height_in(rows: int) -> float:
    return max(1.25 + min(0.27 * rows, 6.5), 2.9)


def _find_top_ratio(binned: FloatArray) -> float:
    """Return the largest ratio with a color of its own.

    It is a quantile, so that single spikes do not make the rest pale.
    """
    finite = binned[np.isfinite(binned)]
    return max(2.0, float(np.quantile(finite, 0.995))) if finite.size else 2.0


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    # The negations round the division up. The last label, of the links, is always shown.
    every = -(-len(labels) // MOST_LABELS)
    shown: IntArray = np.arange(0, len(labels), every)
    if shown[-1] != len(labels) - 1:
        shown = np.append(shown[:-1], len(labels) - 1)
    axes.set_yticks(shown, [labels[i] for i in shown])
    axes.tick_params(axis="y", length=0)


def build_outlines(analysis: AnalysisResult) -> list[FindingOutline]:
    """Return boxes around the reported findings.

    Adjacent rows that are slow in the same steps share one.
    """
    found = sorted(
        (row, finding.first_step, finding.last_step, finding.kind == "deterministic")
        for cause in select_reported_groups(analysis)[0]
        for finding in cause.findings
        for row in select_finding_rows(finding, analysis)
    )
    slack = SAME_EDGE * (float(analysis.steps[-1]) - float(analysis.steps[0]) + 1)
    boxes: list[FindingOutline] = []
    for row, first, last, whole_run in found:
        near = (
            b
            for b in boxes
            if b.whole_run == whole_run
            and b.last_row == row - 1
            and row < len(analysis.hosts)
            and max(abs(b.first_step - first), abs(b.last_step - last)) <= slack
        )
        box = next(near, None)
        if box is None:
            boxes.append(FindingOutline(row, row, first, last, whole_run=whole_run))
        else:
            joined = replace(
                box,
                last_row=row,
                first_step=min(box.first_step, first),
                last_step=max(box.last_step, last),
            )
            boxes[boxes.index(box)] = joined
    return boxes


def _draw_outlines(axes: Axes, analysis: AnalysisResult) -> None:
    """Draw solid outlines for the whole run and dashed ones for temporary findings."""
    # Short findings in long runs would otherwise be narrower than the line.
    least = (float(analysis.steps[-1]) - float(analysis.steps[0]) + 1) / 200
    for box in build_outlines(analysis):
        corner = (box.first_step - 0.5, box.first_row - 0.44)
        width, height = (
            max(box.last_step - box.first_step + 1, least),
            box.last_row - box.first_row + 0.88,
        )
        draw_outline(axes, corner, width, height, whole_run=box.whole_run)


def _add_seconds_axis(axes: Axes, clock: StepClock, edges: tuple[float, float]) -> None:
    """Add a second scale with the seconds since the first step."""
    if len(clock.steps) < 2:
        return
    top = axes.twiny()
    top.set_xlim(*edges)
    seconds = _choose_second_ticks(float(clock.start_s[0]), float(clock.end_s[-1]))
    began, number = [*clock.start_s, clock.end_s[-1]], [*(clock.steps - 0.5), clock.steps[-1] + 0.5]
    positions = np.interp(seconds, began, number)
    top.set_xticks(positions, label_apart(positions, seconds, (edges[1] - edges[0]) / 16))
    top.set_xlabel("seconds since the first step")
    top.spines["top"].set_visible(True)


def _choose_second_ticks(first: float, last: float) -> FloatArray:
    span = max(last - first, 1e-3)
    raw = span / 8
    scale = 10.0 ** np.floor(np.log10(raw))
    unit = scale * min((m for m in (1, 2, 5, 10) if m * scale >= raw), default=10)
    ticks: FloatArray = np.arange(np.ceil(first / unit), np.floor(last / unit) + 1) * unit
    return ticks


def label_apart(positions: FloatArray, values: FloatArray, least: float) -> list[str]:
    """Return labels of ticks, empty where a label would touch the one before.

    During one long step, many seconds pass within a column.
    """
    labels, last = [], -np.inf
    for position, value in zip(positions, values, strict=True):
        fits = position - last >= least
        labels.append(f"{value:.6g}" if fits else "")
        last = position if fits else last
    return labels


def _set_ratio_ticks(bar: Colorbar, top: float) -> None:
    ticks = [t for t in _TICKS if t <= top * 1.001]
    if bar.orientation == "horizontal" and top > 3.0:
        ticks = [t for t in ticks if t not in {1.25, 1.5}]
    if len(ticks) > 7:
        ticks = [t for t in ticks if t in {1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0}]
    axis = bar.ax.xaxis if bar.orientation == "horizontal" else bar.ax.yaxis
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_ticklabels([f"{t:g}x" for t in ticks])
    bar.set_label("slowdown")


def write_heatmap_caption(_run: RunData, analysis: AnalysisResult) -> str:
    """Describe the content of the heatmap."""
    if not analysis.stragglers and len(analysis.steps) < 2 * MIN_STEPS:
        return (
            "Darker is slower, relative to the usual time of the fastest hosts. The run has"
            f" {format_count(len(analysis.steps), 'step')}, which is too few to detect a"
            " straggler."
        )
    if not analysis.stragglers:
        return (
            "Pale cells mean that a rank computes as fast as the fastest hosts usually do. Single"
            " dark cells are noise, and dark first steps are the warm-up. No row is dark for long"
            " enough to be a straggler."
        )
    return (
        "Darker is slower, relative to the usual time of the fastest hosts. Stragglers are outlined"
        " in blue: solid for the whole run, dashed if temporary. Dark first steps are the warm-up."
        " The lowest row is the collectives' transfer relative to its own usual time, so only"
        " changes on the links darken it."
    )


FIGURE = FigureKind(
    "slowdown_heatmap",
    "Slow ranks over time",
    "Heatmap with one row per rank and one for the links, steps from left to right; darker is"
    " slower.",
    draw_heatmap,
    write_heatmap_caption,
    has_common_steps,
)
