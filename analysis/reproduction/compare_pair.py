"""Judgment of a pair of runs of one scenario: the losses, the time, the accuracy, the findings.

Losses must be equal bit for bit where Laggard promises it. Everything else varies from run to run.
There a difference counts if it is greater than the one that these two runs could tell, and greater
than the tolerance, which stands for the variation between runs that one pair cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from laggard.analysis.reproduction.block_comparison import BlockComparison, compare_blocks
from laggard.analysis.tables.columns import FloatArray, IntArray, StepColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import Finding

_LEAST_EVALUATIONS = 6

Quantity = Literal["status", "losses", "step time", "makespan", "steps", "accuracy", "findings"]


@dataclass(frozen=True)
class Judgment:
    """Judgment of one quantity.

    Attributes:
        quantity: name of the quantity.
        agrees: whether the runs agree in it.
        sentence: what was compared, and how it was judged.
        detectable: least difference that the runs could show, relative, or absolute for the
            accuracy; None where the comparison is exact.
    """

    quantity: Quantity
    agrees: bool
    sentence: str
    detectable: float | None = None


@dataclass(frozen=True)
class JudgedRun:
    """Run with the findings of its analysis."""

    data: RunData
    findings: tuple[Finding, ...]


def compare_pair(
    first: JudgedRun, second: JudgedRun, *, exact: bool, tolerance: float
) -> tuple[Judgment, ...]:
    """Compare a run with its reproduction.

    Args:
        first: original run.
        second: reproduction.
        exact: whether the losses must be equal bit for bit.
        tolerance: relative difference that runs of one setup may have.

    Returns:
        A judgment of every quantity that both runs have.
    """
    times = compare_blocks(_step_times(first.data.steps), _step_times(second.data.steps))
    learned = _cut_to_common_steps(first.data, second.data)
    is_equal = _find_first_difference(*learned) is None
    judged = [
        _judge_losses(*learned, tolerance, exact=exact),
        _judge_step_time(times, tolerance),
        *_judge_outcomes(first.data, second.data, times, tolerance, is_equal=is_equal),
        _judge_findings(first, second, times, tolerance),
    ]
    return tuple(each for each in judged if each is not None)


def _cut_to_common_steps(first: RunData, second: RunData) -> tuple[StepColumns, StepColumns]:
    """Return the steps of both runs, up to the earlier end if a clock ended one of them."""
    outcomes = [each.record and each.record.outcome for each in (first, second)]
    if not any(each and each.stopped_by in {"time", "walltime"} for each in outcomes):
        return first.steps, second.steps
    last = min(int(each.steps.step.max(initial=-1)) for each in (first, second))
    kept = [each.steps.where(each.steps.step <= last) for each in (first, second)]
    return kept[0], kept[1]


def _judge_losses(
    first: StepColumns, second: StepColumns, tolerance: float, *, exact: bool
) -> Judgment | None:
    if not len(first) and not len(second):
        return None
    where = _find_first_difference(first, second)
    count = int(np.isfinite(first.loss).sum())
    if where is None:
        return Judgment("losses", True, f"{count} losses are equal bit for bit")
    if exact:
        return Judgment("losses", False, f"must be equal bit for bit, but {where}")
    compared = compare_blocks(_mean_losses(first), _mean_losses(second))
    if compared is None:
        reason = "too few steps for a test, which needs four in each run"
        return Judgment("losses", False, f"{where}; {reason}")
    return judge_ratio("losses", f"{where}; the mean loss", compared, tolerance)


def _find_first_difference(first: StepColumns, second: StepColumns) -> str | None:
    """Describe the first loss that differs; None if all are equal bit for bit."""
    mine, other = (_sort_losses(each) for each in (first, second))
    for name, keys in zip(("steps", "ranks"), zip(mine[:2], other[:2], strict=True), strict=True):
        if len(keys[0]) != len(keys[1]) or not np.array_equal(keys[0], keys[1]):
            count = f"{len(keys[0])} and {len(keys[1])} losses"
            return f"the runs have losses of different {name} ({count})"
    differs = np.flatnonzero(mine[2].view(np.int64) != other[2].view(np.int64))
    if not len(differs):
        return None
    at = differs[0]
    return (
        f"{len(differs)} of {len(mine[2])} losses differ, the first in step {mine[0][at]} of rank"
        f" {mine[1][at]}: {mine[2][at]!r} and {other[2][at]!r}"
    )


def _sort_losses(steps: StepColumns) -> tuple[IntArray, IntArray, FloatArray]:
    order = np.lexsort((steps.rank, steps.step))
    return steps.step[order], steps.rank[order], np.ascontiguousarray(steps.loss[order], np.float64)


def _mean_losses(steps: StepColumns) -> FloatArray:
    """Return the loss of every step, as the mean of its ranks."""
    known = np.isfinite(steps.loss)
    number, place = np.unique(steps.step[known], return_inverse=True)
    sums = np.bincount(place, weights=steps.loss[known], minlength=len(number))
    return sums / np.maximum(np.bincount(place, minlength=len(number)), 1)


def _step_times(steps: StepColumns) -> FloatArray:
    """Return the mean duration of every rank's k-th step, in seconds.

    Each rank's steps are counted on their own, since ranks may take steps of their own.
    """
    ranks = [np.flatnonzero(steps.rank == rank) for rank in np.unique(steps.rank)]
    if not ranks:
        return np.array([])
    least = min(map(len, ranks))
    durations = [
        ((steps.end_ns - steps.start_ns)[rows][np.argsort(steps.step[rows])])[:least]
        for rows in ranks
    ]
    mean: FloatArray = np.mean(durations, axis=0) / 1e9
    return mean


def _judge_step_time(compared: BlockComparison | None, tolerance: float) -> Judgment | None:
    if compared is None:
        return None
    return judge_ratio("step time", "the mean step", compared, tolerance)


def judge_ratio(
    quantity: Quantity,
    subject: str,
    compared: BlockComparison,
    tolerance: float,
    unit: str = "blocks",
) -> Judgment:
    """Judge the ratio of two means: a difference counts if it is beyond power and tolerance.

    Args:
        quantity: name of the quantity.
        subject: what has these means, for the sentence.
        compared: ratio with its power.
        tolerance: relative difference that runs of one setup may have.
        unit: what was compared, for the sentence.
    """
    difference = max(compared.ratio, 1 / compared.ratio) - 1
    limit = max(compared.detectable, tolerance)
    sentence = (
        f"{subject} of the reproduction is {compared.ratio:.4g} times that of the original (95 %"
        f" interval {compared.low:.4g} to {compared.high:.4g}, {compared.blocks} {unit});"
        f" {_describe_power(compared.detectable, tolerance)}"
    )
    verdict = "which is beyond it" if difference > limit else "which is within it"
    sentence = f"{sentence}; the difference is {_percent(difference)}, {verdict}"
    return Judgment(quantity, difference <= limit, sentence, compared.detectable)


def _describe_power(detectable: float, tolerance: float) -> str:
    if detectable <= tolerance:
        return (
            f"a difference of {_percent(detectable)} within a run would be seen, so the tolerance"
            f" of {_percent(tolerance)} between runs decides"
        )
    repeats = math.ceil((detectable / tolerance) ** 2) if tolerance > 0 else 0
    more = f"; about {repeats} repeats of each run would show {_percent(tolerance)}"
    return f"only a difference of {_percent(detectable)} or more would be seen" + (
        more if repeats else ""
    )


def _judge_outcomes(
    first: RunData,
    second: RunData,
    times: BlockComparison | None,
    tolerance: float,
    *,
    is_equal: bool,
) -> Iterator[Judgment]:
    outcomes = [None if each.record is None else each.record.outcome for each in (first, second)]
    one, other = outcomes
    if one is None or other is None:
        if one is not other:
            lacking = "the original" if one is None else "the reproduction"
            yield Judgment("makespan", False, f"{lacking} has no outcome")
        return
    ratio = other.makespan_s / one.makespan_s if one.makespan_s > 0 else math.inf
    difference = max(ratio, 1 / ratio) - 1 if ratio > 0 else math.inf
    limit = max(tolerance, times.detectable if times is not None else 0.0)
    power = _describe_power(limit if times is None else times.detectable, tolerance)
    sentence = (
        f"{one.makespan_s:.3f} s and {other.makespan_s:.3f} s, a difference of"
        f" {_percent(difference)}; {power}"
    )
    yield Judgment("makespan", difference <= limit, sentence, limit)
    is_timed = {one.stopped_by, other.stopped_by} & {"time", "walltime"}
    is_exact = not is_timed and (is_equal or one.stopped_by == other.stopped_by == "steps")
    yield _judge_steps(one.steps, other.steps, tolerance, is_exact=is_exact)
    if one.accuracy is not None and other.accuracy is not None:
        accuracies = one.accuracy, other.accuracy
        yield _judge_accuracy(first, second, accuracies, tolerance, is_equal=is_equal)


def _judge_steps(one: int, other: int, tolerance: float, *, is_exact: bool) -> Judgment:
    if is_exact or one == other:
        return Judgment("steps", one == other, f"{one} and {other}")
    difference = max(one, other) / max(min(one, other), 1) - 1
    sentence = (
        f"{one} and {other}, which depend on the time that steps take; the difference is"
        f" {_percent(difference)}, and the tolerance {_percent(tolerance)}"
    )
    return Judgment("steps", difference <= tolerance, sentence, tolerance)


def _judge_accuracy(
    first: RunData,
    second: RunData,
    accuracies: tuple[float, float],
    tolerance: float,
    *,
    is_equal: bool,
) -> Judgment:
    """Judge the last accuracies; equal losses imply equal accuracies.

    The noise of one evaluation is half the mean square of successive differences (J. von Neumann,
    Ann. Math. Stat. 12, 1941), so that the trend of learning does not count.
    """
    one, other = accuracies
    values = f"{100 * one:.2f} % and {100 * other:.2f} %"
    if is_equal:
        return Judgment("accuracy", one == other, f"{values}; the losses are equal")
    series = [_evaluations(each.steps) for each in (first, second)]
    if min(map(len, series)) < _LEAST_EVALUATIONS:
        reason = (
            f"with fewer than {_LEAST_EVALUATIONS} evaluations their noise is unknown, so the"
            f" tolerance of {100 * tolerance:.2g} points decides"
        )
        agrees = abs(one - other) <= tolerance
        return Judgment("accuracy", agrees, f"{values}; {reason}", tolerance)
    late = [each[len(each) // 2 :] for each in series]
    variance = sum(float(np.mean(np.diff(each) ** 2)) / 2 for each in late)
    detectable = (1.96 + 0.84) * math.sqrt(variance)
    sentence = f"{values}; a difference of {100 * detectable:.2f} points or more would be seen"
    return Judgment("accuracy", abs(one - other) <= detectable, sentence, detectable)


def _evaluations(steps: StepColumns) -> FloatArray:
    known = np.isfinite(steps.accuracy)
    return steps.accuracy[known][np.argsort(steps.step[known], kind="stable")]


def _judge_findings(
    first: JudgedRun, second: JudgedRun, times: BlockComparison | None, tolerance: float
) -> Judgment:
    """Judge the sets of stragglers; one that costs less than could be told does not count."""
    mine, other = (_by_subject(each) for each in (first, second))
    limit = max(tolerance, times.detectable if times is not None else 0.0)
    changes = [
        (name, cost, where)
        for costs, others, where in (
            (mine, other, "only in the original"),
            (other, mine, "only in the reproduction"),
        )
        for name, cost in costs.items()
        if name not in others
    ]
    common = len(mine.keys() & other.keys())
    described = [
        f"{name} ({_percent(cost)} of the makespan) {where}" for name, cost, where in changes
    ]
    sentence = "; ".join([f"{common} in both", *described])
    if changes:
        sentence += f"; a cost below {_percent(limit)} is too small to count"
    agrees = all(cost <= limit for _, cost, _ in changes)
    return Judgment("findings", agrees, sentence, limit if changes else None)


def _by_subject(run: JudgedRun) -> dict[str, float]:
    """Return the share of the makespan that each straggler costs."""
    record = run.data.record
    makespan_s = record.outcome.makespan_s if record is not None and record.outcome else 0.0
    costs: dict[str, float] = {}
    for finding in run.findings:
        if finding.masked:
            continue
        link = "" if finding.link is None else f" link {' to '.join(finding.link)}"
        host = finding.host or "all ranks"
        name = f"{host}{link}: {finding.family}, {finding.kind}"
        share = finding.cost_s / makespan_s if makespan_s > 0 else 0.0
        costs[name] = costs.get(name, 0.0) + share
    return costs


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
