"""Loss and accuracy over time, with the intervals of temporary stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.figure_kind import (
    FigureKind,
)
from laggard.analysis.report.style.canvas import MUTED, is_narrow, new_figure, set_title
from laggard.analysis.report.style.palette import TIERS
from laggard.analysis.tables.columns import FloatArray, StepColumns
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.evaluations import select_evaluations
from laggard.analysis.tables.timelines.step_clock import (
    NS_PER_S,
    get_finding_window_s,
    get_step_clock,
)
from laggard.core.text.text_format import format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Points that a curve has at most, and evaluations up to which each has a marker.
MOST_POINTS = 400
MOST_MARKS = 120
_BAND = "#E69F00"


def draw_progress(run: RunData, analysis: AnalysisResult, width_in: float) -> Figure:
    """Draw accuracy above loss, on one time scale.

    Args:
        run: run with loss and accuracy per step.
        analysis: findings to shade.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    accuracy, loss = get_curves(run)
    curves = [
        (what, curve) for what, curve in (("accuracy", accuracy), ("loss", loss)) if len(curve[0])
    ]
    figure = new_figure(width_in, (0.6 if is_narrow(width_in) else 0.5) + 1.8 * max(len(curves), 1))
    panels = figure.subplots(max(len(curves), 1), 1, sharex=True, squeeze=False)[:, 0].tolist()
    for axes, (what, (when, values)) in zip(panels, curves, strict=False):
        (_plot_accuracy if what == "accuracy" else _plot_loss)(axes, when, values)
    if not curves:
        _draw_empty_panel(panels[0])
    set_title(
        panels[0],
        f"{' and '.join(what for what, _ in curves).capitalize() or 'Progress'} over time",
        width_in,
    )
    panels[-1].set_xlabel("seconds since the first step")
    if curves and _shade_findings(panels, run, analysis):
        figure.legend(loc="outside lower center")
    for axes in panels:
        axes.grid()
    return figure


def has_progress(run: RunData, _analysis: AnalysisResult) -> bool:
    """Return True if a run recorded loss or accuracy; another tool's trace does not."""
    return any(len(when) for when, _ in get_curves(run))


Curve = tuple[FloatArray, FloatArray]
"""Times in seconds, and a value at each."""


def get_curves(run: RunData) -> tuple[Curve, Curve]:
    """Return accuracy and loss over time, which are computed once."""
    return run.memoize(_build_curves)


def _build_curves(run: RunData) -> tuple[Curve, Curve]:
    return build_accuracy_curve(run.steps), build_loss_curve(
        run.steps, asynchronous=not run.is_lockstep
    )


def build_accuracy_curve(steps: StepColumns) -> Curve:
    """Return the time in seconds and the accuracy of every evaluation, in order of time."""
    rows = select_evaluations(steps)
    return rows.end_ns / NS_PER_S, rows.accuracy


def build_loss_curve(steps: StepColumns, *, asynchronous: bool = False) -> Curve:
    """Return times in seconds and the loss as a mean over ranks, weighted by samples.

    Long series are averaged over groups of consecutive steps, or of consecutive records of
    asynchronous ranks.
    """
    if asynchronous:
        weight, seconds, loss = _sum_weighted(steps, asynchronous=True)
    else:
        weight, seconds, loss = np.concatenate(
            [_sum_weighted(part) for part in steps.parts()], axis=1
        )
    cell = np.arange(len(weight)) * min(len(weight), MOST_POINTS) // max(len(weight), 1)
    total = np.bincount(cell, weights=weight)
    return np.bincount(cell, weights=seconds) / total, np.bincount(cell, weights=loss) / total


def _sum_weighted(steps: StepColumns, *, asynchronous: bool = False) -> FloatArray:
    """Return samples and their sums of seconds and losses, per step or record, [3, N]."""
    rows = steps.where(np.isfinite(steps.loss) & (steps.samples > 0))
    # Asynchronous ranks share no steps: each record is its own place, in order of time. The double
    # argsort turns times into positions.
    place = (
        np.argsort(np.argsort(rows.end_ns, kind="stable"), kind="stable")
        if asynchronous
        else rows.step
    )
    _, place = np.unique(place, return_inverse=True)
    values = (rows.samples, rows.samples * (rows.end_ns / NS_PER_S), rows.samples * rows.loss)
    return np.stack([np.bincount(place, weights=value).astype(np.float64) for value in values])


def _plot_accuracy(axes: Axes, when: FloatArray, accuracy: FloatArray) -> None:
    marker = "o" if len(when) <= MOST_MARKS else ""
    axes.plot(*_thin_points(when, accuracy), color=TIERS[0], marker=marker, markersize=3.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(100 * value, 2):g} %"))
    axes.set_ylabel("accuracy")
    axes.margins(x=0.01)


def _thin_points(when: FloatArray, values: FloatArray) -> Curve:
    """Return at most `MOST_POINTS` points, with the first and the last among them."""
    if len(when) <= MOST_POINTS:
        return when, values
    chosen = np.linspace(0, len(when) - 1, MOST_POINTS).round().astype(np.int64)
    return when[chosen], values[chosen]


def _plot_loss(axes: Axes, when: FloatArray, loss: FloatArray) -> None:
    axes.plot(when, loss, color=TIERS[2])
    axes.set_ylabel("training loss")
    axes.set_ylim(bottom=min(0.0, float(loss.min())))
    axes.margins(x=0.01)


def _draw_empty_panel(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    text = "neither loss nor accuracy was recorded"
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def _shade_findings(panels: Sequence[Axes], run: RunData, analysis: AnalysisResult) -> bool:
    clock = get_step_clock(run)
    windows = {
        get_finding_window_s(run, f, clock) for f in analysis.stragglers if f.kind == "dynamic"
    }
    for number, (start, end) in enumerate(sorted(windows)):
        for axes in panels:
            # One label is enough for the legend.
            label = "temporary straggler" if number == 0 and axes is panels[0] else None
            axes.axvspan(start, end, color=_BAND, alpha=0.25, linewidth=0, label=label)
    return bool(windows)


def write_progress_caption(run: RunData, _analysis: AnalysisResult) -> str:
    """Describe the content of the learning curves."""
    (when, accuracy), (loss_when, loss) = get_curves(run)
    if len(when):
        best = int(np.argmax(accuracy))
        return (
            f"Accuracy was {format_percent(float(accuracy[-1]))} at the last evaluation (best"
            f" {format_percent(float(accuracy[best]))} after {format_seconds(float(when[best]))})."
        )
    if len(loss_when):
        fell = (
            f"Loss {'fell' if loss[-1] <= loss[0] else 'rose'} from {loss[0]:.3g} to {loss[-1]:.3g}"
        )
        return f"{fell} in {format_seconds(float(loss_when[-1]))}."
    return "The run recorded neither loss nor accuracy."


FIGURE = FigureKind(
    "progress",
    "Training progress",
    "Two line charts over time: accuracy of every evaluation, and training loss.",
    draw_progress,
    write_progress_caption,
    has_progress,
)
