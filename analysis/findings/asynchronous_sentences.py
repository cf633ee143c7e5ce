"""Sentences about asynchronous ranks besides findings: steps, waiting, lost ranks and churn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import ChurnEvent
from laggard.core.text.text_format import format_percent, format_ratio


def _format_turnover(run: RunData, churn: Sequence[ChurnEvent], rank: int) -> str:
    """Return the sentence about a rank that left or joined."""
    sentences = " and ".join(
        f"{each.kind} after {each.effective_s:.1f} s" for each in churn if each.rank == rank
    )
    return f"{run.hosts[rank].host} (rank {rank}) {sentences}."


def format_asynchronous(run: RunData, analysis: AnalysisResult) -> tuple[str, ...]:
    """Return sentences about slow ranks, waiting, lost ranks and churn.

    If costs were not computed, the slowest rank comes first.
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
        sentences.append(
            f"{format_percent(dropped)} of the computed samples were discarded without training on"
            " them."
        )
    return tuple(each for each in [*sentences, _format_waiting(run, analysis)] if each)


def _format_pricing(run: RunData, analysis: AnalysisResult) -> str:
    """Return the sentence that defines a cost in this run, or why there is none."""
    record = run.record
    if record is not None and record.origin is not None:
        return (
            "This trace can be replayed only in part (see the notes below), so the cost of slow"
            " workers is not computed."
        )
    if run.federated is not None:
        return ""  # The sentences about rounds have costs of their own.
    name = record.strategy.name if record is not None else "this strategy"
    pace_text = "every worker takes steps of its own"
    if record is not None and (record.lost_ranks or record.churn):
        pace_text = "workers were lost" if record.lost_ranks else "workers left or joined"
    if not analysis.costed:
        return f"In this run with {name}, {pace_text}, so the cost of slow workers is not computed."
    return (
        f"In this run with {name}, {pace_text}. The cost of a cause is the time that the run would"
        " save without it, for the same number of samples."
        if analysis.stragglers
        else ""
    )


def _format_slowest(run: RunData, analysis: AnalysisResult) -> str:
    """Return the sentence that compares the slowest rank's usual step with the fastest's.

    The result is empty if they differ by less than 10 %.
    """
    usual = np.median(analysis.compute_s, axis=0)
    # A rank without steps gets the median of the others, so that it is neither the fastest nor the
    # slowest.
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
    return f"{sentences}; it took {taken[slow]} steps, {names[1]} took {taken[fast]}."


def _format_waiting(run: RunData, analysis: AnalysisResult) -> str:
    """Return the sentence about the rank that waits most, and the rank that it mostly waits for.

    The result is empty if it waits less than 2 % of the time.
    """
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
