"""Figure of one step of a plan: what each host computes, and what passes over its links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import WIDE_IN, house_style, new_figure
from laggard.analysis.report.style.figure_file import save_figure
from laggard.analysis.report.style.labels import sanitize_label
from laggard.core.span_schema import Phase
from laggard.predict.planning.model_plan import PlannedModel
from laggard.workloads.planning.step_tasks import StepTaskKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW_IN = 0.32
_PHASES = {
    StepTaskKind.FORWARD: Phase.FORWARD,
    StepTaskKind.BACKWARD: Phase.BACKWARD,
    StepTaskKind.UPDATE: Phase.OPTIMIZER,
}
"""Phases of the tasks that devices compute; all others are messages."""


def save_model_plan_figure(planned: PlannedModel, path: Path) -> None:
    """Draw a step of a plan, and write it to an SVG or PNG file.

    Args:
        planned: the plan.
        path: file to write; its suffix is `.svg` or `.png`.

    Raises:
        InputError: the suffix is another one.
        OSError: the file cannot be written.
    """
    rows = _name_rows(planned)
    with house_style():
        figure = new_figure(WIDE_IN, 1.4 + _ROW_IN * len(rows))
        axes = figure.subplots()
        _draw_tasks(axes, planned, rows)
        axes.set_title(f"{sanitize_label(planned.scenario.name)}: one step of the plan")
    save_figure(figure, path)


def _name_rows(planned: PlannedModel) -> list[tuple[int, int]]:
    """Return the rows of the figure: devices that compute, then links that carry messages."""
    meanings = planned.found.tasks.meanings
    devices = sorted({each.device for each in meanings if each.kind in _PHASES})
    links = sorted({(each.device, each.dst) for each in meanings if each.kind not in _PHASES})
    return [*((device, device) for device in devices), *links]


def _draw_tasks(axes: Axes, planned: PlannedModel, rows: list[tuple[int, int]]) -> None:
    found, drawn = planned.found, set()
    place_of = {row: place for place, row in enumerate(rows)}
    for task, meaning, begin_s in zip(
        found.tasks.tasks, found.tasks.meanings, found.schedule.begins_s, strict=True
    ):
        phase = _PHASES.get(meaning.kind, Phase.COMM)
        row = (meaning.device, meaning.device if meaning.kind in _PHASES else meaning.dst)
        axes.barh(
            place_of[row],
            task.seconds,
            left=begin_s,
            height=0.8,
            color=palette.PHASES[phase].color,
            edgecolor="white",
            linewidth=0.4,
            label=None if phase in drawn else palette.PHASES[phase].label,
        )
        drawn.add(phase)
    names = [sanitize_label(each.name) for each in planned.problem.devices]
    axes.set_yticks(
        range(len(rows)),
        [names[src] if src == dst else f"{names[src]} to {names[dst]}" for src, dst in rows],
    )
    axes.invert_yaxis()
    axes.set_xlim(0, found.step_s * 1.01)
    axes.set_xlabel("seconds")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)
