"""Accuracy on the tasks of a stream over the steps of the training, with the borders of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.ticker import PercentFormatter

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.stream_result import format_stream
from laggard.analysis.report.figures.figure_kind import FigureKind
from laggard.analysis.report.style.canvas import INK, MUTED, is_narrow, new_figure, set_title
from laggard.analysis.report.style.palette import LINES
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import StreamTask

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NAMED = 10
"""Tasks up to which each one is in the legend."""


def draw_task_accuracy(run: RunData, _analysis: AnalysisResult, width_in: float) -> Figure:
    """Draw the accuracy on each task, and their mean over the tasks that have begun.

    Args:
        run: run with the tasks of a stream.
        _analysis: not used.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    figure = new_figure(width_in, 4.2 if is_narrow(width_in) else 3.6)
    axes = figure.subplots()
    _plot_tasks(axes, run.stream_tasks)
    for task in run.stream_tasks[:-1]:
        axes.axvline(task.last_step + 0.5, color=MUTED, linewidth=0.8, linestyle=":")
    set_title(axes, "Accuracy on each task", width_in)
    axes.set_xlabel("step (dotted: a task ends)")
    axes.set_ylabel("accuracy")
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.margins(x=0.01)
    axes.grid()
    figure.legend(loc="outside lower center", ncols=2 if is_narrow(width_in) else 4)
    return figure


def _plot_tasks(axes: Axes, tasks: Sequence[StreamTask]) -> None:
    steps = np.array(tasks[0].steps)
    accuracies = np.array([task.accuracies for task in tasks]).reshape(len(tasks), len(steps))
    shades = colormaps["viridis"](np.linspace(0.0, 0.88, len(tasks)))
    for number, task in enumerate(tasks):
        label = _name_task(number, task) if len(tasks) <= _MOST_NAMED else None
        style = LINES[number % len(LINES)]
        axes.plot(
            steps,
            accuracies[number],
            color=shades[number],
            linestyle=style,
            marker=".",
            label=label,
        )
    first = [0, *(task.last_step + 1 for task in tasks[:-1])]
    begun = steps[None, :] >= np.array(first)[:, None]
    mean = np.where(begun, accuracies, 0.0).sum(axis=0) / np.maximum(begun.sum(axis=0), 1)
    axes.plot(steps, mean, color=INK, linewidth=2.4, label="mean of tasks so far")


def _name_task(number: int, task: StreamTask) -> str:
    classes = ", ".join(map(str, task.classes[:4])) + (" …" if len(task.classes) > 4 else "")
    return f"task {number + 1}: {classes}"


def has_evaluated_tasks(run: RunData, _analysis: AnalysisResult) -> bool:
    """Return True if a run had a stream, and its model was evaluated."""
    return bool(run.stream_tasks) and bool(run.stream_tasks[0].steps)


def write_task_accuracy_caption(run: RunData, _analysis: AnalysisResult) -> str:
    """Describe what was learnt and forgotten."""
    return format_stream(run.stream_tasks)[0]


FIGURE = FigureKind(
    "task_accuracy",
    "Accuracy on each task of the stream",
    "Line chart: accuracy on the test samples of each task in every evaluation, over the steps of"
    " the training.",
    draw_task_accuracy,
    write_task_accuracy_caption,
    has_evaluated_tasks,
)
