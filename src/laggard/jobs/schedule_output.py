"""Schedules as text and as a document for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from laggard.core.text.text_columns import align_columns
from laggard.core.text.text_format import format_count, format_percent
from laggard.jobs.cluster_file import SharedCluster
from laggard.jobs.schedule_jobs import ClusterSchedule, ExecutedSchedule

if TYPE_CHECKING:
    from pydantic import JsonValue

_HOUR_S = 3600.0


def format_schedules(cluster: SharedCluster, schedules: Sequence[ClusterSchedule]) -> str:
    """Format the schedules of a cluster: a row for each policy, and what fairness costs."""
    return "\n".join(_format_lines(cluster, schedules))


def _format_lines(cluster: SharedCluster, schedules: Sequence[ClusterSchedule]) -> Iterator[str]:
    devices = ", ".join(f"{each.count} {each.name}" for each in cluster.types)
    yield (
        f"{cluster.name}: {format_count(len(cluster.jobs), 'job')} on {devices}, simulated in"
        f" rounds of {cluster.options.round_s:g} s"
    )
    yield from align_columns(format_rows(cluster, schedules))
    if len({each.policy.partition(",")[0] for each in schedules}) > 1:
        yield format_price_of_fairness(schedules)
    yield from (f"note: {each}" for each in cluster.notes)


def format_rows(cluster: SharedCluster, schedules: Sequence[ClusterSchedule]) -> list[list[str]]:
    """Return the header and one row of cells for each schedule."""
    priced = any(each.price_per_hour for each in cluster.types)
    header = ["policy", "makespan", "completion", "worst ratio", "fairness"]
    header += [each.name for each in cluster.types] + ["cost"] * priced
    rows = [header]
    for each in schedules:
        row = [
            each.policy,
            format_time(each.result.makespan_s),
            format_time(each.mean_completion_s),
            f"{each.finish_time_ratios.max():.2f}",
            f"{each.fairness:.2f}",
            *map(format_percent, each.utilization),
        ]
        rows.append([*row, _format_cost(each.cost)] if priced else row)
    return rows


def format_execution(cluster: SharedCluster, schedule: ExecutedSchedule) -> str:
    """Format the jobs as they ran beside the simulation."""
    both = (schedule.simulated, schedule.executed)
    lines = [*_format_lines(cluster, both), *format_differences(cluster, schedule)]
    return "\n".join([*lines, *(f"note: {each}" for each in schedule.notes)])


def format_differences(cluster: SharedCluster, schedule: ExecutedSchedule) -> list[str]:
    """Return sentences on how the executed schedule differs from the simulated one."""
    longer = schedule.executed.result.makespan_s / schedule.simulated.result.makespan_s - 1
    lines = [f"the executed makespan is {100 * longer:+.1f} % relative to the simulated one"]
    differences = schedule.share_differences
    place = int(np.abs(differences).argmax())
    lines.append(
        "shares of the devices' time differ most for"
        f" {cluster.jobs[place].name}, by {100 * differences[place]:+.1f} percentage points"
    )
    failed = sum(bool(turn.problem) for turn in schedule.turns)
    if failed:
        lines.append(
            f"{format_count(failed, 'turn')} failed, and the jobs went on from the turns before"
        )
    return lines


def build_execution_document(
    cluster: SharedCluster, schedule: ExecutedSchedule
) -> dict[str, JsonValue]:
    """Return the simulated and the executed schedule, and every turn."""
    document = build_schedule_document(cluster, (schedule.simulated, schedule.executed))
    document["share_differences"] = dict(
        zip((job.name for job in cluster.jobs), schedule.share_differences.tolist(), strict=True)
    )
    document["notes"] = [*cluster.notes, *schedule.notes]
    document["throughput"] = {job.name: dict(job.throughput) for job in cluster.jobs}
    document["turns"] = [{**asdict(turn), "hosts": list(turn.hosts)} for turn in schedule.turns]
    return document


def format_price_of_fairness(schedules: Sequence[ClusterSchedule]) -> str:
    """Return a sentence on how much longer the fairest schedule takes."""
    fairest = max(schedules, key=lambda each: each.fairness)
    fastest = min(schedules, key=lambda each: each.result.makespan_s)
    if fairest is fastest:
        return f"{fairest.policy} is the fairest of these policies and ends first"
    more = fairest.result.makespan_s / fastest.result.makespan_s - 1
    return (
        f"the fairest is {fairest.policy}: its makespan is {format_percent(more)} longer than that"
        f" of {fastest.policy}, whose fairness is {fastest.fairness:.2f}"
    )


def _format_cost(cost: float) -> str:
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.2g}"


def format_time(seconds: float) -> str:
    """Return a time in hours, or in seconds if it is less than an hour."""
    return f"{seconds / _HOUR_S:.2f} h" if seconds >= _HOUR_S else f"{seconds:.4g} s"


def build_schedule_document(
    cluster: SharedCluster, schedules: Sequence[ClusterSchedule]
) -> dict[str, JsonValue]:
    """Return the schedules as a document; times are in seconds."""
    return {
        "cluster": cluster.name,
        "types": {each.name: each.count for each in cluster.types},
        "round_s": cluster.options.round_s,
        "schedules": [_build_schedule(cluster, each) for each in schedules],
        "notes": list(cluster.notes),
    }


def _build_schedule(cluster: SharedCluster, schedule: ClusterSchedule) -> dict[str, JsonValue]:
    result, names = schedule.result, [each.name for each in cluster.types]
    ratios = schedule.finish_time_ratios
    return {
        "policy": schedule.policy,
        "makespan_s": result.makespan_s,
        "mean_completion_s": schedule.mean_completion_s,
        "median_completion_s": float(np.median(result.completion_s)),
        "worst_finish_time_ratio": float(ratios.max()),
        "fairness": schedule.fairness,
        "cost": schedule.cost,
        "utilization": dict(zip(names, schedule.utilization.tolist(), strict=True)),
        "rounds": result.rounds,
        "jobs": [
            {
                "name": job.name,
                "arrival_s": job.arrival_s,
                "finish_s": float(result.finish_s[number]),
                "finish_time_ratio": float(ratios[number]),
                "received_s": dict(zip(names, result.received_s[number].tolist(), strict=True)),
            }
            for number, job in enumerate(cluster.jobs)
        ],
    }
