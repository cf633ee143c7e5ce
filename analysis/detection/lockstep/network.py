"""Detectors of the network: slow collectives, and links that are slow throughout the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import (
    MIN_RATIO,
    MIN_STEPS,
    Segment,
    find_baseline_level,
    find_slow_intervals,
    is_raised,
    segment_series,
    to_mask,
)
from laggard.analysis.detection.links import (
    SampleWindow,
    find_changed_link,
    find_slow_links,
    has_changed_link,
)
from laggard.analysis.detection.lockstep.cause_detector import DetectionInput
from laggard.analysis.detection.series_causes import MIN_MAKESPAN_SHARE, is_starving
from laggard.analysis.detection.short_slowness import find_slow_steps
from laggard.analysis.detection.transfers import Transfers
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray, LinkColumns
from laggard.analysis.tables.timelines.timeline import Timeline

MIN_COMPARED = 3
"""Least number of steps with transfers that can be compared with one another."""


def find_transfer_causes(run: DetectionInput, found: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Add the dynamic causes of slow collectives, with a link where the counters clearly name one.

    If a collective slowed down together with a rank's compute, and no link was slower than usual,
    the network is not the cause: a starved host reduces slowly. The excess is then charged to that
    rank by marking its cause in `found`. A slowdown that three quarters of the ranks' compute
    shares comes from the machine under them and is subtracted.
    """
    timeline, transfers, links, hosts = run.timeline, run.transfers, run.links, run.hosts
    usable = np.flatnonzero(~timeline.warm_up & transfers.has_transfers)
    least_s = MIN_MAKESPAN_SHARE * timeline.makespan
    if len(usable) < MIN_COMPARED or transfers.step_seconds.sum() < least_s:
        return found
    slow = _find_slow_transfers(run, usable, least_s)
    windows = [_build_window(timeline, links, each.first, each.last) for each in slow]
    quiet = _build_complement_window(links, len(usable), windows)
    slow_transfers: list[Cause] = []
    marked = list(found)
    for cause, inside in zip(slow, windows, strict=True):
        first, last = cause.first, cause.last
        excess_s = _measure_excess_s(transfers, first, last)
        culprits = [i for i, c in enumerate(marked) if is_starving(c, first, last)]
        if culprits and not has_changed_link(links, inside, quiet, excess_s, hosts):
            for index in culprits:
                marked[index] = replace(marked[index], burdens_transfer=(first, last))
            continue
        link = find_changed_link(links, inside, quiet, excess_s, hosts)
        slow_transfers.append(replace(cause, link=link))
    return (*marked, *slow_transfers)


def _find_slow_transfers(run: DetectionInput, usable: IntArray, least_s: float) -> list[Cause]:
    """Return the slow intervals and the expensive slow steps of the collectives, without links."""
    series = run.transfers.step_logs[usable]
    found: list[Cause] = []
    baseline, examined = 0.0, np.ones(len(series), dtype=np.bool_)
    if len(usable) >= 2 * MIN_STEPS:
        levels = segment_series(series)
        baseline = find_baseline_level(levels)
        parts = [
            _subtract_drift(part, run.drift[usable])
            for part in find_slow_intervals(series, levels, baseline)
        ]
        for part in parts:
            if is_raised(part, levels, baseline) and (part.first or part.last < len(series) - 1):
                confidence = levels.confidence(part.level - baseline, part.length)
                first, last = int(usable[part.first]), int(usable[part.last])
                found.append(_build_cause(first, last, part.level, confidence, baseline))
                examined[part.first : part.last + 1] = False
    seconds = run.transfers.step_seconds[usable]
    (slow,) = find_slow_steps(
        series[:, None] - baseline, seconds[:, None], examined[:, None], least_s, repeated=False
    )
    for group in slow:
        first, last = int(usable[group.steps[0]]), int(usable[group.steps[-1]])
        cause = _build_cause(first, last, group.level + baseline, group.confidence, baseline)
        found.append(replace(cause, is_short=True))
    return found


def _build_cause(first: int, last: int, level: float, confidence: float, baseline: float) -> Cause:
    slowdown = math.exp(level - baseline)
    return Cause("network", "dynamic", None, first, last, slowdown, confidence, baseline)


def _subtract_drift(part: Segment, drift: FloatArray) -> Segment:
    """Subtract from an interval the slowdown of the machine inside it relative to the rest.

    Only intervals that were found slow are corrected. Correcting the whole series would make
    intervals of a steady series look slow.
    """
    inside = to_mask((part,), len(drift))
    if inside.all():
        return part
    shift = max(float(np.median(drift[inside]) - np.median(drift[~inside])), 0.0)
    return replace(part, level=part.level - shift, quartile=part.quartile - shift)


def _measure_excess_s(transfers: Transfers, first: int, last: int) -> float:
    """Return the median seconds per step by which transfers took longer than usual, above 0."""
    usual = transfers.step_seconds[first : last + 1] / np.exp(transfers.step_logs[first : last + 1])
    return max(float(np.median(transfers.step_seconds[first : last + 1] - usual)), 1e-9)


def find_link_causes(run: DetectionInput, found: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Add the deterministic causes of the network: links slower than the fastest class throughout.

    Without link samples there are none. The time of dynamic network causes is excluded.
    """
    timeline, transfers, links = run.timeline, run.transfers, run.links
    usable = np.flatnonzero(~timeline.warm_up)
    if not len(usable):
        return found
    dynamic = [each for each in found if each.spec.uses_links and each.kind == "dynamic"]
    windows = [_build_window(timeline, links, cause.first, cause.last) for cause in dynamic]
    quiet = _build_complement_window(links, len(timeline.steps), windows)
    steps = max(quiet.steps * float(transfers.has_transfers.mean()), 1.0)
    slow = find_slow_links(links, quiet.rows, {host.host: host.tier for host in run.hosts})
    usual = transfers.usual_step_s
    slow_links: list[Cause] = []
    for link in slow.links:
        busy, needed = link.busy_s / steps, link.needed_s / steps
        # Slowdown of a step's transfers, not of the link: a slow link that is rarely busy delays a
        # step little.
        ratio = (
            usual / max(usual - (busy - needed), usual / link.slowdown, 1e-9) if usual > 0 else 1.0
        )
        if ratio >= MIN_RATIO:
            slow_links.append(
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
                    link_others_busy_s=slow.others_busy_s / steps,
                )
            )
    return (*found, *slow_links)


def _build_window(timeline: Timeline, links: LinkColumns, first: int, last: int) -> SampleWindow:
    """Return the window from the first collective of step `first` to the last of step `last`."""
    at = ~timeline.pause & (timeline.barrier_step >= first) & (timeline.barrier_step <= last)
    begin, end = timeline.arrival[at].min(initial=np.inf), timeline.finish[at].max(initial=-np.inf)
    during: BoolArray = (links.time_ns >= begin * 1e9) & (links.time_ns <= end * 1e9)
    return SampleWindow(during, last - first + 1)


def _build_complement_window(
    links: LinkColumns, steps: int, windows: Sequence[SampleWindow]
) -> SampleWindow:
    """Return the rest of a run of `steps` steps, outside all windows."""
    rows = np.ones(len(links), dtype=np.bool_)
    for window in windows:
        rows &= ~window.rows
    return SampleWindow(rows, max(steps - sum(window.steps for window in windows), 1))
