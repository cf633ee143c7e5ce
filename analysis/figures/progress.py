"""Loss and accuracy over time, with the intervals in which a straggler came and went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter

from laggard.analysis.columns import FloatArray, StepColumns
from laggard.analysis.figures.canvas import MUTED, is_narrow, new_figure, title
from laggard.analysis.figures.palette import TIERS
from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run
from laggard.analysis.step_clock import NS_PER_S, step_clock

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 400
_BAND = "#E69F00"


def draw_progress(run: Run, analysis: Analysis, width_in: float) -> Figure:
    """Draws accuracy above loss, on one time scale.

    Args:
        run: loss and accuracy per step.
        analysis: findings, shaded.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    narrow = is_narrow(width_in)
    figure = new_figure(width_in, 4.2 if narrow else 3.9)
    upper, lower = figure.subplots(2, 1, sharex=True)
    when, accuracy = accuracy_curve(run.steps)
    upper.plot(when, accuracy, color=TIERS[0], marker="o", markersize=3.5)
    upper.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(100 * value, 2):g} %"))
    upper.set_ylabel("accuracy")
    title(upper, "Accuracy and loss over time", width_in)
    _say_if_empty(upper, when, "no evaluation was recorded")
    when, loss = loss_curve(run.steps, own_pace=not run.lockstep)
    lower.plot(when, loss, color=TIERS[2])
    lower.set_ylabel("training loss")
    lower.set_ylim(bottom=0)
    lower.margins(x=0.01)
    lower.set_xlabel("seconds since the first step")
    _say_if_empty(lower, when, "no loss was recorded")
    shaded = _shade((upper, lower), run, analysis)
    for axes in (upper, lower):
        axes.grid()
    if shaded:
        figure.legend(loc="outside lower center")
    return figure


def accuracy_curve(steps: StepColumns) -> tuple[FloatArray, FloatArray]:
    """Seconds and accuracy of every evaluation, in order of time."""
    rows = steps.where(np.isfinite(steps.accuracy))
    # One evaluation of ranks in lockstep stands at all of them.
    _, first = np.unique(np.column_stack([rows.step, rows.accuracy]), axis=0, return_index=True)
    rows = rows.where(first[np.argsort(rows.end_ns[first], kind="stable")])
    return rows.end_ns / NS_PER_S, rows.accuracy


def loss_curve(steps: StepColumns, *, own_pace: bool = False) -> tuple[FloatArray, FloatArray]:
    """Seconds and loss (mean over ranks, weighted by samples), averaged over runs of steps, or of moments, where there are many."""
    rows = steps.where(np.isfinite(steps.loss) & (steps.samples > 0))
    if not len(rows):
        return np.array([], dtype=np.float64), np.array([], dtype=np.float64)
    place = np.argsort(np.argsort(rows.end_ns, kind="stable"), kind="stable") if own_pace else rows.step
    numbers, place = np.unique(place, return_inverse=True)
    cell = place * min(len(numbers), MOST_POINTS) // len(numbers)
    weight = np.bincount(cell, weights=rows.samples)
    seconds = np.bincount(cell, weights=rows.samples * (rows.end_ns / NS_PER_S)) / weight
    return seconds, np.bincount(cell, weights=rows.samples * rows.loss) / weight


def _say_if_empty(axes: Axes, when: FloatArray, text: str) -> None:
    if not len(when):
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def _shade(panels: tuple[Axes, ...], run: Run, analysis: Analysis) -> bool:
    clock = step_clock(run)
    windows = {clock.window_s(f.first_step, f.last_step) for f in analysis.stragglers if f.kind == "dynamic"}
    for number, (start, end) in enumerate(sorted(windows)):
        for axes in panels:
            label = "a straggler came and went" if number == 0 and axes is panels[0] else None
            axes.axvspan(start, end, color=_BAND, alpha=0.25, linewidth=0, label=label)
    return bool(windows)
