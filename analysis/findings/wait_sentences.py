"""Sentences about waiting of ranks for one another that the findings do not explain."""

from __future__ import annotations

import math

import numpy as np

from laggard.analysis.findings.analysis_result import UNEXPLAINED_WAIT_SHARE, AnalysisResult
from laggard.analysis.replay.lockstep.residual_waits import ResidualWaits
from laggard.core.text.text_format import format_percent, format_seconds

CONCENTRATION = 1.5
"""Ratio of the waiting for one rank to an equal share from which this rank is named."""
_MAX_BARRIERS = 500
MAX_CHANCE = 0.01
"""Largest probability that equal ranks would make one of them last as often."""


def format_unexplained_waits(analysis: AnalysisResult) -> tuple[str, ...]:
    """Return the sentence about unexplained waiting, if it is more than 5 % of the makespan."""
    waits = analysis.waits
    if waits is None or not analysis.has_unexplained_waits:
        return ()
    share = format_percent(waits.unexplained_s / analysis.makespan_s)
    reason = "that no finding explains" if analysis.findings else "without a lasting cause"
    if len(analysis.steps) == 1:
        reason = "in this one step"
    return (
        (
            f"Ranks wait for one another for {format_seconds(waits.unexplained_s)} on average"
            f" ({share} of the makespan) {reason}{_format_late_rank(analysis, waits)}; do not rely"
            " on the costs."
        ),
    )


def format_structural_waits(analysis: AnalysisResult) -> tuple[str, ...]:
    """Return the sentence about waits without stragglers, if above 5 % of the makespan."""
    waits = analysis.waits
    if waits is None or waits.structure_s <= UNEXPLAINED_WAIT_SHARE * analysis.makespan_s:
        return ()
    share = format_percent(min(waits.structure_s, waits.wait_s) / analysis.makespan_s)
    who = (
        "The stages of the pipeline wait for one another"
        if waits.is_pipeline
        else "Ranks wait while others still exchange data"
    )
    return (f"{who} for {share} of the makespan even without stragglers.",)


def format_jitter(analysis: AnalysisResult) -> tuple[str, ...]:
    """Return the sentence about waiting due to jitter, if it is more than 5 % of the makespan."""
    waits = analysis.waits
    if waits is None or waits.jitter_s <= UNEXPLAINED_WAIT_SHARE * analysis.makespan_s:
        return ()
    share = format_percent(min(waits.jitter_s, waits.wait_s) / analysis.makespan_s)
    return (
        (
            "Jitter from step to step makes ranks wait for one another, by turns, for"
            f" {share} of the makespan."
        ),
    )


def _format_late_rank(analysis: AnalysisResult, waits: ResidualWaits) -> str:
    total = float(waits.caused_s.sum())
    latest = int(np.argmax(waits.caused_s))
    world = len(waits.caused_s)
    if total <= 0 or waits.caused_s[latest] < CONCENTRATION * total / world:
        return ", for all ranks by turns"
    last = int(waits.times_last[latest])
    # In one step it is a fact who came last. In several steps a name must mean more than chance.
    if len(analysis.steps) > 1 and _compute_chance(last, waits.barriers, world) > MAX_CHANCE:
        return ", for several ranks"
    part = format_percent(float(waits.caused_s[latest]) / total)
    return (
        f", mostly for {analysis.hosts[latest].host} ({part} of it; last at {last} of"
        f" {waits.barriers} collectives)"
    )


def _compute_chance(times: int, barriers: int, world: int) -> float:
    """Return the probability that any of equal ranks is last at least so often."""
    least = 1.0 / world
    tail = (
        sum(
            math.comb(barriers, count) * least**count * (1.0 - least) ** (barriers - count)
            for count in range(times, min(barriers, _MAX_BARRIERS) + 1)
        )
        if barriers <= _MAX_BARRIERS
        else math.erfc(
            (times / barriers - least) / math.sqrt(2.0 * least * (1.0 - least) / barriers)
        )
        / 2.0
    )
    return min(world * tail, 1.0)
