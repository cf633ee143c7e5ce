"""Finds causes: slow intervals of every rank's compute and storage, and of the collectives'
transfers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.detection.causes import FAMILY_CODES, Cause
from laggard.analysis.detection.intervals import (
    MIN_RATIO,
    MIN_STEPS,
    Levels,
    Segment,
    estimate_shared_drift,
    find_baseline_level,
    find_slow_intervals,
    is_raised,
    is_steadily_raised,
    measure_segment,
    segment_series,
    to_mask,
)
from laggard.analysis.detection.links import (
    SampleWindow,
    find_changed_link,
    find_slow_links,
    has_changed_link,
)
from laggard.analysis.detection.reference import COMPUTE_CODES, References, compute_log_ratio
from laggard.analysis.detection.transfers import Transfers
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray, LinkColumns
from laggard.analysis.tables.load_run import RankHost
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.run_schema import StragglerFamily

LOCAL_FAMILIES: tuple[StragglerFamily, ...] = ("compute", "storage")
DETERMINISTIC_SHARE = 0.9
MIN_MAKESPAN_SHARE = 0.01
MERGE_OVERLAP_SHARE = 0.5


@dataclass(frozen=True)
class LogRatioSeries:
    """One rank's log ratios of a family over the usable steps: to its own usual, and that usual to
    the fleet's.

    `usable` are the steps' indices, `fleet_scatter` is how much equal hosts differ (log).
    """

    own: FloatArray
    to_fleet: FloatArray
    usable: IntArray
    fleet_scatter: float


def find_local_causes(
    timeline: Timeline, references: References, drift: FloatArray, family: StragglerFamily
) -> tuple[Cause, ...]:
    """Deterministic and dynamic causes of one family of local work.

    Args:
        timeline: the run.
        references: own and fleet references.
        drift: of the machine (see `measure_machine_drift`), [S].
        family: "compute" or "storage".

    Returns:
        Causes by rank; ranks that spend under 1 % of the makespan on the family have none.
    """
    codes = list(FAMILY_CODES[family])
    usable = np.flatnonzero(~timeline.warm_up)
    if len(usable) < 2 * MIN_STEPS:
        return ()
    least = MIN_MAKESPAN_SHARE * timeline.makespan
    found: list[Cause] = []
    for rank in range(timeline.samples.shape[1]):
        seconds = timeline.work.of_rank(rank, codes).sum(axis=1)[usable]
        if seconds.sum() >= least:
            own = references.own.total(rank, codes)[usable]
            logs, moved = compute_log_ratio(seconds, own), drift[usable]
            steady = family == "storage" and _compute_median_deviation(
                logs
            ) <= _compute_median_deviation(logs - moved)
            to_fleet = compute_log_ratio(own, references.fleet.total(rank, codes)[usable])
            series = LogRatioSeries(
                logs if steady else logs - moved, to_fleet, usable, references.scatter
            )
            found += find_series_causes(series, family, rank)
    return tuple(found)


def _compute_median_deviation(logs: FloatArray) -> float:
    """How far a series usually is from its median: a drive that keeps its pace while the machine
    drifts shows by it.
    """
    return float(np.median(np.abs(logs - np.median(logs))))


def measure_machine_drift(timeline: Timeline, references: References) -> FloatArray:
    """How much slower than usual three quarters of the ranks compute at once (log), [S]; 0 in
    warm-up.
    """
    usable = ~timeline.warm_up
    logs = timeline.work.total(COMPUTE_CODES)[usable]
    for rank in range(logs.shape[1]):
        logs[:, rank] = compute_log_ratio(
            logs[:, rank], references.own.total(rank, COMPUTE_CODES)[usable]
        )
    drift = np.zeros(len(usable))
    drift[usable] = estimate_shared_drift(logs)
    return drift


def find_series_causes(series: LogRatioSeries, family: StragglerFamily, rank: int) -> list[Cause]:
    """The deterministic cause of a series, if it has one, and its dynamic ones."""
    levels = segment_series(series.own)
    baseline = find_baseline_level(levels, -float(np.median(series.to_fleet)))
    intervals = find_slow_intervals(series.own, levels, baseline)
    whole = len(series.own)
    dynamic = [part for part in intervals if part.first > 0 or part.last < whole - 1]
    found = [_build_dynamic_cause(part, series, levels, baseline, family, rank) for part in dynamic]
    deterministic = _measure_deterministic(series, levels, to_mask(tuple(dynamic), whole))
    if deterministic is not None:
        level, confidence = deterministic
        first, last = int(series.usable[0]), int(series.usable[-1])
        found.insert(
            0,
            Cause(
                family, "deterministic", rank, first, last, math.exp(level), confidence, baseline
            ),
        )
    return found


def _build_dynamic_cause(
    part: Segment,
    series: LogRatioSeries,
    levels: Levels,
    baseline: float,
    family: StragglerFamily,
    rank: int,
) -> Cause:
    return Cause(
        family=family,
        kind="dynamic",
        rank=rank,
        first=int(series.usable[part.first]),
        last=int(series.usable[part.last]),
        slowdown=math.exp(part.level - baseline),
        confidence=levels.confidence(part.level - baseline, part.length),
        baseline=baseline,
    )


def _measure_deterministic(
    series: LogRatioSeries, levels: Levels, dynamic: BoolArray
) -> tuple[float, float] | None:
    """Level against the fleet outside dynamic intervals, and confidence, if slow in 90 % of the
    steps.

    Equal hosts are never quite equal: how much they differ counts as error here.
    """
    against_fleet = series.own + series.to_fleet
    levels = replace(levels, wander=math.hypot(levels.wander, series.fleet_scatter))
    slow_steps = 0
    for part in levels.segments:
        measured = measure_segment(against_fleet, part.first, part.last)
        # Also of parts too short to be intervals: a host that is slow all along may be slower still
        # for a moment.
        slow_steps += part.length if is_steadily_raised(measured, levels, 0.0) else 0
    if slow_steps < DETERMINISTIC_SHARE * len(series.own) or dynamic.all():
        return None
    level = float(np.median(against_fleet[~dynamic]))
    if level < math.log(MIN_RATIO):
        return None
    return level, levels.confidence(level, int((~dynamic).sum()))


def find_transfer_causes(
    timeline: Timeline,
    drift: FloatArray,
    transfers: Transfers,
    local: Sequence[Cause],
    links: LinkColumns,
    hosts: tuple[RankHost, ...],
) -> tuple[tuple[Cause, ...], tuple[Cause, ...]]:
    """Dynamic causes of slow collectives, named by the links' counters where these are clear.

    A collective that slowed while a rank's compute did, with no link slower than usual, is not a
    network cause: a starved host reduces slowly. Its excess is charged to that rank. What slows
    three quarters of the ranks' compute as well is the machine under them, and taken out.

    Args:
        timeline: the run.
        drift: what every rank's compute has in common, [S].
        transfers: the collectives against their usual.
        local: causes found in local work.
        links: TCP samples; may be empty.
        hosts: the ranks' hosts.

    Returns:
        Network causes, and `local` with burdens marked.
    """
    usable = np.flatnonzero(~timeline.warm_up & transfers.has_transfers)
    series = transfers.step_logs[usable]
    if (
        len(usable) < 2 * MIN_STEPS
        or transfers.step_seconds.sum() < MIN_MAKESPAN_SHARE * timeline.makespan
    ):
        return (), tuple(local)
    levels = segment_series(series)
    baseline = find_baseline_level(levels)
    slow = [
        _subtract_drift(part, drift[usable])
        for part in find_slow_intervals(series, levels, baseline)
    ]
    parts = [
        p
        for p in slow
        if is_raised(p, levels, baseline) and (p.first > 0 or p.last < len(series) - 1)
    ]
    windows = [
        _build_window(timeline, links, int(usable[p.first]), int(usable[p.last])) for p in parts
    ]
    quiet = _build_complement_window(links, len(usable), windows)
    found: list[Cause] = []
    marked = list(local)
    for part, inside in zip(parts, windows, strict=True):
        first, last = int(usable[part.first]), int(usable[part.last])
        excess_s = _measure_excess_s(transfers, first, last)
        culprits = [i for i, c in enumerate(marked) if _is_starving(c, first, last)]
        if culprits and not has_changed_link(links, inside, quiet, excess_s, hosts):
            for index in culprits:
                marked[index] = replace(marked[index], burdens_transfer=(first, last))
            continue
        link = find_changed_link(links, inside, quiet, excess_s, hosts)
        confidence = levels.confidence(part.level - baseline, part.length)
        slowdown = math.exp(part.level - baseline)
        found.append(
            Cause("network", "dynamic", None, first, last, slowdown, confidence, baseline, link)
        )
    return tuple(found), tuple(marked)


def _subtract_drift(part: Segment, drift: FloatArray) -> Segment:
    """An interval less what the machine was slower in it than in the rest.

    Only what was found slow as measured is corrected: correcting all of a series would make
    intervals of a steady one slow.
    """
    inside = to_mask((part,), len(drift))
    if inside.all():
        return part
    shift = max(float(np.median(drift[inside]) - np.median(drift[~inside])), 0.0)
    return replace(part, level=part.level - shift, quartile=part.quartile - shift)


def _measure_excess_s(transfers: Transfers, first: int, last: int) -> float:
    """Seconds per step that transfers took longer than usual."""
    usual = transfers.step_seconds[first : last + 1] / np.exp(transfers.step_logs[first : last + 1])
    return max(float(np.median(transfers.step_seconds[first : last + 1] - usual)), 1e-9)


def _is_starving(cause: Cause, first: int, last: int) -> bool:
    shared = cause.overlap(first, last)
    return (
        cause.kind == "dynamic"
        and cause.family == "compute"
        and shared >= MERGE_OVERLAP_SHARE * (last - first + 1)
    )


def _build_window(timeline: Timeline, links: LinkColumns, first: int, last: int) -> SampleWindow:
    """From the first collective of step `first` to the last of step `last`."""
    at = ~timeline.pause & (timeline.barrier_step >= first) & (timeline.barrier_step <= last)
    begin, end = timeline.arrival[at].min(initial=np.inf), timeline.finish[at].max(initial=-np.inf)
    during: BoolArray = (links.time_ns >= begin * 1e9) & (links.time_ns <= end * 1e9)
    return SampleWindow(during, last - first + 1)


def _build_complement_window(
    links: LinkColumns, steps: int, windows: Sequence[SampleWindow]
) -> SampleWindow:
    """All the rest of a run of `steps` steps."""
    rows = np.ones(len(links), dtype=np.bool_)
    for window in windows:
        rows &= ~window.rows
    return SampleWindow(rows, max(steps - sum(window.steps for window in windows), 1))


def find_link_causes(
    timeline: Timeline,
    transfers: Transfers,
    dynamic: Sequence[Cause],
    links: LinkColumns,
    hosts: tuple[RankHost, ...],
) -> tuple[tuple[Cause, ...], float]:
    """Deterministic network causes: links slower than the fastest class all along. Without link
    samples there are none.

    Args:
        timeline: the run.
        transfers: the collectives against their usual.
        dynamic: network causes already found; their time is left out.
        links: TCP samples.
        hosts: the ranks' hosts.

    Returns:
        Causes, and busy seconds per step of the busiest link that is not slow.
    """
    usable = np.flatnonzero(~timeline.warm_up)
    if not len(usable):
        return (), 0.0
    windows = [_build_window(timeline, links, cause.first, cause.last) for cause in dynamic]
    quiet = _build_complement_window(links, len(timeline.steps), windows)
    steps = max(quiet.steps * float(transfers.has_transfers.mean()), 1.0)
    slow = find_slow_links(links, quiet.rows, {host.host: host.tier for host in hosts})
    usual = transfers.usual_step_s
    found = []
    for link in slow.links:
        busy, needed = link.busy_s / steps, link.needed_s / steps
        ratio = (
            usual / max(usual - (busy - needed), usual / link.slowdown, 1e-9) if usual > 0 else 1.0
        )
        if ratio >= MIN_RATIO:
            found.append(
                Cause(
                    family="network",
                    kind="deterministic",
                    rank=None,
                    first=int(usable[0]),
                    last=int(usable[-1]),
                    slowdown=link.slowdown,
                    confidence=link.confidence,
                    link=link.ends,
                    link_busy_s=busy,
                    link_needed_s=needed,
                )
            )
    return tuple(found), slow.others_busy_s / steps
