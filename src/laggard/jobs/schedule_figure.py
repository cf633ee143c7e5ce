"""Figure of schedules: completion times of all policies, and who ran where by one of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import WIDE_IN, house_style, new_figure
from laggard.analysis.report.style.figure_file import save_figure
from laggard.analysis.report.style.labels import sanitize_label
from laggard.jobs.cluster_file import SharedCluster
from laggard.jobs.schedule_jobs import ClusterSchedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HOUR_S = 3600.0
_MOST_SECONDS = 1200.0
"""Makespan up to which axes count seconds."""

_HEIGHT_IN = 6.4
_MOST_LABELS = 30
"""Jobs up to which the rows of the chart have names."""


def save_schedule_figure(
    cluster: SharedCluster, schedules: Sequence[ClusterSchedule], path: Path
) -> None:
    """Draw schedules, and write them to an SVG or PNG file.

    Args:
        cluster: the cluster.
        schedules: schedules; the chart of turns is that of the first.
        path: file to write; its suffix is `.svg` or `.png`.

    Raises:
        InputError: the suffix is another one.
        OSError: the file cannot be written.
    """
    longest_s = max(each.result.makespan_s for each in schedules)
    unit = ("seconds", 1.0) if longest_s <= _MOST_SECONDS else ("hours", _HOUR_S)
    with house_style():
        figure = new_figure(WIDE_IN, _HEIGHT_IN)
        turns, completion = figure.subplots(2, 1, height_ratios=(3, 2))
        _draw_turns(turns, cluster, schedules[0], unit)
        _draw_completion(completion, schedules, unit)
    save_figure(figure, path)


def _draw_turns(
    axes: Axes, cluster: SharedCluster, schedule: ClusterSchedule, unit: tuple[str, float]
) -> None:
    for kind, each in enumerate(cluster.types):
        turns = [turn for turn in schedule.result.turns if turn.kind == kind]
        axes.barh(
            [turn.job for turn in turns],
            [(turn.end_s - turn.start_s) / unit[1] for turn in turns],
            left=[turn.start_s / unit[1] for turn in turns],
            height=0.9,
            color=palette.TIERS[kind % len(palette.TIERS)],
            linewidth=0,
            label=sanitize_label(each.name),
        )
    axes.set_title(f"{sanitize_label(cluster.name)}: who runs where under {schedule.policy}")
    axes.set_xlabel(unit[0])
    axes.set_ylabel("job, by arrival")
    if len(cluster.jobs) <= _MOST_LABELS:
        names = [sanitize_label(job.name) for job in cluster.jobs]
        axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(cluster.jobs) - 0.5, -0.5)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_completion(
    axes: Axes, schedules: Sequence[ClusterSchedule], unit: tuple[str, float]
) -> None:
    for number, each in enumerate(schedules):
        times = np.sort(each.result.completion_s) / unit[1]
        axes.step(
            np.r_[0.0, times],
            np.arange(len(times) + 1) / len(times),
            where="post",
            color=palette.TIERS[number % len(palette.TIERS)],
            linestyle=("-", "--", ":")[number // len(palette.TIERS) % 3],
            label=each.policy,
        )
    axes.set_xlabel(f"{unit[0]} from arrival to end")
    axes.set_ylabel("part of the jobs")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    axes.grid()
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
