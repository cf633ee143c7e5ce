"""Page of the schedules of a cluster: the figure, what fairness costs, and all jobs and turns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from laggard.core.errors import InputError
from laggard.core.files.output_files import write_text
from laggard.core.text.text_format import format_count
from laggard.jobs.cluster_file import SharedCluster
from laggard.jobs.execute_jobs import ExecutedTurn
from laggard.jobs.schedule_figure import save_schedule_figure
from laggard.jobs.schedule_jobs import ClusterSchedule, ExecutedSchedule
from laggard.jobs.schedule_output import (
    format_differences,
    format_price_of_fairness,
    format_rows,
    format_time,
)

_MOST_ROWS = 500


def require_page_path(path: Path) -> None:
    """Require that a file can be a page.

    Raises:
        InputError: its suffix is another one, or its folder does not exist.
    """
    if path.suffix.lower() != ".html":
        raise InputError(f"{path}: a report is a page — give a file that ends in .html")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: its folder does not exist — make it, or give another file")


def write_schedule_page(
    cluster: SharedCluster,
    schedules: Sequence[ClusterSchedule],
    path: Path,
    executed: ExecutedSchedule | None = None,
) -> None:
    """Write a page, and its figure beside it with the suffix `.svg`.

    Args:
        cluster: the cluster.
        schedules: schedules; the chart of turns and the table of jobs are those of the first.
        path: file of the page.
        executed: what was executed; None if all schedules are simulated.

    Raises:
        OSError: a file cannot be written.
    """
    from jinja2 import Environment

    figure, first = path.with_suffix(".svg"), schedules[0]
    save_schedule_figure(cluster, schedules, figure)
    header, *rows = format_rows(cluster, schedules)
    order = np.argsort(-first.finish_time_ratios, kind="stable")[:_MOST_ROWS]
    devices = ", ".join(f"{each.count} {each.name}" for each in cluster.types)
    page = Environment(autoescape=True).from_string(
        files("laggard.jobs").joinpath("schedule_page.html").read_text("utf-8")
    )
    text = page.render(
        name=cluster.name,
        css=files("laggard.analysis.report").joinpath("page.css").read_text("utf-8"),
        subject=(
            f"{format_count(len(cluster.jobs), 'job')} on {devices}, in rounds of"
            f" {cluster.options.round_s:g} s"
        ),
        headline=_format_headline(first),
        sentences=_list_sentences(cluster, schedules, executed),
        figure=figure.name,
        columns=header[1:],
        schedules=rows,
        policy=first.policy,
        job_columns=["arrival", "end", "ratio", *(f"on {each.name}" for each in cluster.types)],
        jobs=[_format_job(cluster, first, int(number)) for number in np.sort(order)],
        hidden=len(cluster.jobs) - len(order),
        turns=[_format_turn(path, turn) for turn in executed.turns] if executed else [],
        notes=[*cluster.notes, *(executed.notes if executed else ())],
    )
    write_text(path, text)


def _format_headline(schedule: ClusterSchedule) -> str:
    result = schedule.result
    return (
        f"Under {schedule.policy}, all jobs have ended after {format_time(result.makespan_s)},"
        f" and a job takes {format_time(schedule.mean_completion_s)} on average"
    )


def _list_sentences(
    cluster: SharedCluster, schedules: Sequence[ClusterSchedule], executed: ExecutedSchedule | None
) -> list[str]:
    if executed is not None:
        return format_differences(cluster, executed)
    return [format_price_of_fairness(schedules)] if len(schedules) > 1 else []


def _format_job(cluster: SharedCluster, schedule: ClusterSchedule, number: int) -> list[str]:
    result = schedule.result
    return [
        cluster.jobs[number].name,
        format_time(float(result.arrival_s[number])),
        format_time(float(result.finish_s[number])),
        f"{schedule.finish_time_ratios[number]:.2f}",
        *(format_time(float(each)) for each in result.received_s[number]),
    ]


def _format_turn(page: Path, turn: ExecutedTurn) -> Mapping[str, str]:
    report = Path(turn.run) / "report.html" if turn.run else None
    return {
        "job": turn.job,
        "hosts": ", ".join(turn.hosts),
        "steps": str(turn.steps),
        "took": f"{turn.took_s:.2f}",
        "problem": turn.problem,
        "report": os.path.relpath(report, page.parent) if report and report.exists() else "",
    }
