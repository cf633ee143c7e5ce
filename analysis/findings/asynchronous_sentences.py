"""What is told of ranks of their own pace beside the findings: who took how many steps, who waited
for whom, who came and went.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import ChurnEvent
from laggard.core.text_format import format_percent, format_ratio


def _format_turnover(run: RunData, churn: Sequence[ChurnEvent], rank: int) -> str:
    """When a rank left and joined."""
    sentences = " and ".join(
        f"{each.kind} after {each.effective_s:.1f} s" for each in churn if each.rank == rank
    )
    return f"{run.hosts[rank].host} (rank {rank}) {sentences}."


def format_asynchronous(run: RunData, analysis: AnalysisResult) -> tuple[str, ...]:
    """Who was slow and who was waited for, in plain sentences; where nothing is priced, who was
    slow comes first.
    """
    lost = run.record.lost_ranks if run.record is not None else ()
    churn = run.record.churn if run.record is not None else ()
    slower, priced = _format_slowest(run, analysis), _format_pricing(run, analysis)
    sentences = [priced, slower] if analysis.costed else [slower, priced]
    sentences += [
        _format_turnover(run, churn, rank) for rank in dict.fromkeys(each.rank for each in churn)
    ]
    sentences += [
        f"{run.hosts[rank].host} (rank {rank}) was lost, and the others went on without it."
        for rank in lost
    ]
    dropped = int(run.steps.dropped.sum()) / max(
        int(run.steps.samples.sum() + run.steps.dropped.sum()), 1
    )
    if dropped >= 0.01:
        sentences.append(f"{format_percent(dropped)} of the samples were computed in vain.")
    return tuple(each for each in [*sentences, _format_waiting(run, analysis)] if each)


def _format_pricing(run: RunData, analysis: AnalysisResult) -> str:
    """What a cost is here, or why there is none."""
    record = run.record
    if record is not None and record.origin is not None:
        return (
            "This trace is replayed in part only, as told below, so what slow workers cost is not"
            " computed."
        )
    name = record.strategy.name if record is not None else "this strategy"
    pace_text = "every worker goes at its own pace"
    if record is not None and (record.lost_ranks or record.churn):
        pace_text = "workers were lost" if record.lost_ranks else "workers left or joined"
    if not analysis.costed:
        return f"Under {name} {pace_text}, so what slow ones cost is not computed."
    return (
        f"Under {name} {pace_text}: a cost is how much sooner as much would have been learnt."
        if analysis.stragglers
        else ""
    )


def _format_slowest(run: RunData, analysis: AnalysisResult) -> str:
    """The slowest rank against the fastest, in the usual step of each."""
    usual = np.median(analysis.compute_s, axis=0)
    usual = np.where(usual > 0, usual, np.median(usual[usual > 0]) if usual.any() else 0.0)
    fast, slow = int(np.argmin(usual)), int(np.argmax(usual))
    if usual[fast] <= 0 or usual[slow] < 1.1 * usual[fast]:
        return ""
    names = run.hosts[slow].host, run.hosts[fast].host
    sentences = (
        f"{names[0]} computes {format_ratio(float(usual[slow] / usual[fast]))} slower than"
        f" {names[1]}"
    )
    if run.record is not None and run.record.origin is not None:
        return f"{sentences}."
    taken = np.bincount(run.steps.rank, minlength=run.world_size)
    return f"{sentences}; it took {taken[slow]} steps, and {names[1]} {taken[fast]}."


def _format_waiting(run: RunData, analysis: AnalysisResult) -> str:
    """Who waits most, and for whom."""
    most = int(np.argmax(analysis.time_split.wait_s))
    share_s = float(analysis.time_split.wait_s[most]) / max(analysis.makespan_s, 1e-9)
    whom = run.steps.waited_for[(run.steps.rank == most) & (run.steps.waited_for >= 0)]
    if share_s < 0.02 or not len(whom):
        return ""
    often = int(np.bincount(whom).argmax())
    return (
        f"{run.hosts[most].host} waits {format_percent(share_s)} of the time, mostly for"
        f" {run.hosts[often].host}."
    )
