"""The sentence under each figure: what to see in this run, computed from it."""

from __future__ import annotations

import numpy as np

from laggard.analysis.columns import FloatArray
from laggard.analysis.figures.activity import Activity
from laggard.analysis.figures.gantt import median_step, step_bars, waited_for
from laggard.analysis.figures.long_activity import activity_of
from laggard.analysis.figures.marks import marks_of
from laggard.analysis.figures.palette import WAIT
from laggard.analysis.figures.progress import curves_of
from laggard.analysis.figures.step_ecdf import compute_groups
from laggard.analysis.findings import Analysis
from laggard.analysis.intervals import LEAST_STEPS
from laggard.analysis.load import Run
from laggard.analysis.wording import counted, percent_text, ratio_text, seconds_text


def heatmap_caption(_run: Run, analysis: Analysis) -> str:
    """What the heatmap shows."""
    if not analysis.stragglers and len(analysis.steps) < 2 * LEAST_STEPS:
        return (
            "Darker is slower, against what the fastest hosts usually take; "
            f"{counted(len(analysis.steps), 'step')} of a run are too few to call anybody slow."
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


def time_split_caption(_run: Run, analysis: Analysis) -> str:
    """What the time split shows."""
    split = analysis.time_split
    least = int(np.argmin(split.wait_s))
    most = int(np.argmax(split.wait_s))
    total = float(split.total_s[most])
    if total <= 0 or (split.wait_s[most] - split.wait_s[least]) / total < 0.02:
        return "Every rank waits about as long as every other: nobody in particular is waited for."
    if not analysis.common_steps:
        return (
            f"{_host(analysis, most)} waits for others"
            f" {percent_text(float(split.wait_s[most]) / total)} of the time."
        )
    return (
        f"{_host(analysis, most)} waits for the others"
        f" {percent_text(float(split.wait_s[most]) / total)} of the time; {_host(analysis, least)}"
        f" waits least ({percent_text(float(split.wait_s[least]) / total)}): who waits least is who"
        " is waited for."
    )


def timeline_caption(run: Run, analysis: Analysis) -> str:
    """What the timeline shows: what took most of the time, and what a straggler that came and went
    changed of it.
    """
    activity = activity_of(run)
    if not activity.kinds:
        return "No rank recorded what it did."
    whole = _mix(activity, 0.0, activity.end_ns)
    most = int(np.argmax(whole))
    text = (
        "A row is a rank and time goes to the right; the colours of a column are the shares of"
        f" what the rank did then. {activity.kinds[most].label.capitalize()} takes most of all"
        f" ranks' time ({percent_text(float(whole[most]))})"
    )
    passing = next((mark for mark in marks_of(run, analysis) if not mark.lasting), None)
    if passing is None:
        return text + "."
    inside = _mix(activity, passing.first_s * 1e9, passing.last_s * 1e9)
    changed = int(np.argmax(inside - whole))
    window = f"{seconds_text(passing.first_s)} to {seconds_text(passing.last_s)}"
    return (
        f"{text}. From {window}, where the dashed outline is, {activity.kinds[changed].label} takes"
        f" {percent_text(float(inside[changed]))} of it, and {percent_text(float(whole[changed]))}"
        " over the whole run."
    )


def _mix(activity: Activity, first_ns: float, last_ns: float) -> FloatArray:
    """Shares of all ranks' time in a window, by kind."""
    mix: FloatArray = activity.shares(activity.ranks, first_ns, last_ns, 1)[0].mean(axis=0)[
        : len(activity.kinds)
    ]
    return mix


def gantt_caption(run: Run, analysis: Analysis) -> str:
    """What the Gantt chart shows."""
    step = median_step(analysis)
    bars, _ = step_bars(run.spans.of_steps(step, step), step)
    waited = np.zeros(len(analysis.hosts))
    for group in bars:
        if group.paint is WAIT:
            np.add.at(waited, group.rank, group.length_ms / 1000)
    if not waited.any():
        return f"In step {step}, which took the median time, no rank waited for another."
    most, last = int(np.argmax(waited)), waited_for(run.spans.of_steps(step, step), step)
    return (
        f"In step {step}, which took the median time, {_host(analysis, most)} waited"
        f" {seconds_text(float(waited[most]))} (hatched) for the last to arrive; the collective"
        f" that all together waited for longest began when {_host(analysis, last)} came. Ranks"
        " begin a step when the one before has ended for them, so not together."
    )


def step_ecdf_caption(_run: Run, analysis: Analysis) -> str:
    """What the distribution shows."""
    slowest = analysis.step_s.max(axis=1)
    middle, late = (float(q) for q in np.quantile(slowest, [0.5, 0.95]))
    text = (
        f"Half of the steps took at most {seconds_text(middle)}, 95 % at most {seconds_text(late)}"
    )
    medians = {
        label: float(np.median(analysis.compute_s[:, ranks]))
        for label, ranks in compute_groups(analysis)
    }
    fast, slow = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    if len(medians) < 2 or medians[fast] <= 0:
        return text + "; a steep curve is an even one."
    ratio = ratio_text(medians[slow] / medians[fast])
    return f"{text}; in the median step, {slow} computes {ratio} as long as {fast}."


def progress_caption(run: Run, _analysis: Analysis) -> str:
    """What the learning curves show."""
    (when, accuracy), (loss_when, loss) = curves_of(run)
    if len(when):
        best = int(np.argmax(accuracy))
        return (
            f"Accuracy was {percent_text(float(accuracy[-1]))} at the last evaluation "
            f"(best {percent_text(float(accuracy[best]))} after {seconds_text(float(when[best]))})."
        )
    if len(loss_when):
        fell = (
            f"Loss {'fell' if loss[-1] <= loss[0] else 'rose'} from {loss[0]:.3g} to {loss[-1]:.3g}"
        )
        return f"{fell} in {seconds_text(float(loss_when[-1]))}."
    return "The run recorded neither loss nor accuracy."


def _host(analysis: Analysis, rank: int) -> str:
    host = analysis.hosts[rank]
    return host.host or f"rank {host.rank}"
