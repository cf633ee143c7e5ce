"""The sentence under each figure: what to see in this run, computed from it."""

from __future__ import annotations

import numpy as np

from laggard.analysis.detection.intervals import MIN_STEPS
from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.gantt import (
    build_step_bars,
    find_last_arrival,
    find_median_step,
)
from laggard.analysis.report.figures.progress import get_curves
from laggard.analysis.report.figures.step_ecdf import build_compute_groups
from laggard.analysis.report.style.palette import WAIT
from laggard.analysis.report.timeline.activity import RankActivity
from laggard.analysis.report.timeline.activity_cells import get_activity
from laggard.analysis.report.timeline.cause_marks import build_marks
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.text_format import format_count, format_percent, format_ratio, format_seconds


def heatmap_caption(_run: RunData, analysis: AnalysisResult) -> str:
    """What the heatmap shows."""
    if not analysis.stragglers and len(analysis.steps) < 2 * MIN_STEPS:
        return (
            "Darker is slower, against what the fastest hosts usually take; "
            f"{format_count(len(analysis.steps), 'step')} of a run are too few to call anybody slow."
        )
    if not analysis.stragglers:
        return (
            "Rows are pale where a rank computes as fast as the fastest hosts usually do; single"
            " dark cells are noise, a dark first few steps the warm-up, and no row is dark for long"
            " enough to be a straggler."
        )
    return (
        "Darker is slower, against what the fastest hosts usually take: stragglers are outlined in"
        " blue, solid if they last the whole run and dashed if they come and go; dark first steps"
        " are the warm-up. The lowest row is the collectives' transfer against its own usual time,"
        " so that only what changes on the links darkens it."
    )


def time_split_caption(_run: RunData, analysis: AnalysisResult) -> str:
    """What the time split shows."""
    split = analysis.time_split
    least = int(np.argmin(split.wait_s))
    most = int(np.argmax(split.wait_s))
    total = float(split.total_s[most])
    if total <= 0 or (split.wait_s[most] - split.wait_s[least]) / total < 0.02:
        return "Every rank waits about as long as every other: nobody in particular is waited for."
    if not analysis.common_steps:
        return (
            f"{_format_host(analysis, most)} waits for others"
            f" {format_percent(float(split.wait_s[most]) / total)} of the time."
        )
    return (
        f"{_format_host(analysis, most)} waits for the others"
        f" {format_percent(float(split.wait_s[most]) / total)} of the time; {_format_host(analysis, least)}"
        f" waits least ({format_percent(float(split.wait_s[least]) / total)}): who waits least is who"
        " is waited for."
    )


def timeline_caption(run: RunData, analysis: AnalysisResult) -> str:
    """What the timeline shows: what took most of the time, and what a straggler that came and went
    changed of it.
    """
    activity = get_activity(run)
    if not activity.kinds:
        return "No rank recorded what it did."
    whole = _compute_mix(activity, 0.0, activity.end_ns)
    most = int(np.argmax(whole))
    text = (
        "A row is a rank and time goes to the right; the colours of a column are the shares of"
        f" what the rank did then. {activity.kinds[most].label.capitalize()} takes most of all"
        f" ranks' time ({format_percent(float(whole[most]))})"
    )
    passing = next((mark for mark in build_marks(run, analysis) if not mark.whole_run), None)
    if passing is None:
        return text + "."
    inside = _compute_mix(activity, passing.first_s * 1e9, passing.last_s * 1e9)
    changed = int(np.argmax(inside - whole))
    window = f"{format_seconds(passing.first_s)} to {format_seconds(passing.last_s)}"
    return (
        f"{text}. From {window}, where the dashed outline is, {activity.kinds[changed].label} takes"
        f" {format_percent(float(inside[changed]))} of it, and {format_percent(float(whole[changed]))}"
        " over the whole run."
    )


def _compute_mix(activity: RankActivity, first_ns: float, last_ns: float) -> FloatArray:
    """Shares of all ranks' time in a window, by kind."""
    mix: FloatArray = activity.compute_shares(activity.ranks, first_ns, last_ns, 1)[0].mean(axis=0)[
        : len(activity.kinds)
    ]
    return mix


def gantt_caption(run: RunData, analysis: AnalysisResult) -> str:
    """What the Gantt chart shows."""
    step = find_median_step(analysis)
    bars, _ = build_step_bars(run.spans.of_steps(step, step), step)
    waited = np.zeros(len(analysis.hosts))
    for group in bars:
        if group.paint is WAIT:
            np.add.at(waited, group.rank, group.length_ms / 1000)
    if not waited.any():
        return f"In step {step}, which took the median time, no rank waited for another."
    most, last = int(np.argmax(waited)), find_last_arrival(run.spans.of_steps(step, step), step)
    return (
        f"In step {step}, which took the median time, {_format_host(analysis, most)} waited"
        f" {format_seconds(float(waited[most]))} (hatched) for the last to arrive; the collective"
        f" that all together waited for longest began when {_format_host(analysis, last)} came. Ranks"
        " begin a step when the one before has ended for them, so not together."
    )


def step_ecdf_caption(_run: RunData, analysis: AnalysisResult) -> str:
    """What the distribution shows."""
    slowest = analysis.step_s.max(axis=1)
    middle, late = (float(q) for q in np.quantile(slowest, [0.5, 0.95]))
    text = f"Half of the steps took at most {format_seconds(middle)}, 95 % at most {format_seconds(late)}"
    medians = {
        label: float(np.median(analysis.compute_s[:, ranks]))
        for label, ranks in build_compute_groups(analysis)
    }
    fast, slow = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    if len(medians) < 2 or medians[fast] <= 0:
        return text + "; a steep curve is an even one."
    ratio = format_ratio(medians[slow] / medians[fast])
    return f"{text}; in the median step, {slow} computes {ratio} as long as {fast}."


def progress_caption(run: RunData, _analysis: AnalysisResult) -> str:
    """What the learning curves show."""
    (when, accuracy), (loss_when, loss) = get_curves(run)
    if len(when):
        best = int(np.argmax(accuracy))
        return (
            f"Accuracy was {format_percent(float(accuracy[-1]))} at the last evaluation "
            f"(best {format_percent(float(accuracy[best]))} after {format_seconds(float(when[best]))})."
        )
    if len(loss_when):
        fell = (
            f"Loss {'fell' if loss[-1] <= loss[0] else 'rose'} from {loss[0]:.3g} to {loss[-1]:.3g}"
        )
        return f"{fell} in {format_seconds(float(loss_when[-1]))}."
    return "The run recorded neither loss nor accuracy."


def _format_host(analysis: AnalysisResult, rank: int) -> str:
    host = analysis.hosts[rank]
    return host.host or f"rank {host.rank}"
