"""Runs side by side: makespan, accuracy, bytes, where the time went, and what was found, with
confidence intervals over repeats.

Runs that differ in nothing but their seeds are repeats of one setup. Setups are held against the
first: what is averaged are logarithms of makespans and bytes, so that twice as fast and half as
fast cancel out, and accuracies as they are; seed by seed where both have the same seeds, else by
Welch's interval for the difference of two means (B. L. Welch, Biometrika 34, 1947). Two setups
learn equally well, within a margin, where the interval of the difference of their accuracies lies
inside it (D. J. Schuirmann's two one-sided tests, J. Pharmacokinet. Biopharm. 15, 1987, at 2.5 %
each): one that holds zero and reaches further says only that there were too few repeats.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.answer import get_subject, group_findings
from laggard.analysis.tables.load_run import RunData

Key = tuple[int, int]


@dataclass(frozen=True)
class Estimate:
    """A mean over repeats, and the ends of its 95 % interval; None where there are fewer than
    two.
    """

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class MeasuredRun:
    """What is compared of one run.

    Attributes:
        setup: what all its repeats have in common.
        seed: of the run.
        makespan_s: from the first step to the stopping rule, in virtual seconds.
        accuracy: part of the test set told right when it ended; None where nothing was evaluated.
        bytes_sent: by all workers until then; None where nobody counted them.
        parts_s: where the time went, mean over ranks, by name (see `TimeSplit`).
        causes: parts of the makespan that each cause costs, by who or what it is; None where costs
            were not computed.
        cost: its price, if the scenario has prices.
        fairness: Jain's index.
    """

    setup: str
    seed: int
    makespan_s: float
    parts_s: Mapping[str, float]
    causes: Mapping[str, float] | None
    cost: float | None
    fairness: float | None
    accuracy: float | None = None
    bytes_sent: int | None = None


@dataclass(frozen=True)
class FoundCause:
    """A cause over the repeats of a setup: in how many it was found, and its mean part of the
    makespan over all of them.
    """

    subject: str
    runs: int
    share: float


@dataclass(frozen=True)
class Setup:
    """The repeats of one setup.

    Attributes:
        name: what they have in common.
        seeds: of its runs.
        makespan_s: their geometric mean.
        speedup: how many times as fast as the first setup it is; None for that itself.
        accuracy: when it ended.
        accuracy_gain: by how much its accuracy is above the first setup's; None for that itself.
        bytes_sent: their geometric mean.
        bytes_ratio: how many times what the first setup sent it sent; None for that itself.
        parts_s: where the time went, by name.
        lost_share: part of the makespan that all causes cost together; None where it was not
            computed.
        causes: what was found, dearest first.
        cost: its price.
        fairness: Jain's index.
    """

    name: str
    seeds: tuple[int, ...]
    makespan_s: Estimate
    speedup: Estimate | None
    parts_s: Mapping[str, Estimate]
    lost_share: Estimate | None
    causes: tuple[FoundCause, ...]
    cost: Estimate | None
    fairness: Estimate | None
    accuracy: Estimate | None
    accuracy_gain: Estimate | None
    bytes_sent: Estimate | None
    bytes_ratio: Estimate | None


def measure_run(run: RunData, analysis: AnalysisResult, setup: str) -> MeasuredRun:
    """What is compared of a run that was analyzed."""
    outcome = run.record.outcome if run.record is not None else None
    shares: dict[str, float] = {}
    for cause in group_findings(analysis.findings, analysis):
        what = (
            f"{get_subject(cause, analysis).text.rstrip(',')}: {cause.first.family},"
            f" {cause.first.kind}"
        )
        shares[what] = shares.get(what, 0.0) + cause.cost_s / analysis.makespan_s
    return MeasuredRun(
        setup=setup,
        seed=run.record.seed if run.record is not None else 0,
        makespan_s=outcome.makespan_s if outcome is not None else analysis.makespan_s,
        parts_s={
            name: float(seconds.mean()) for name, seconds in analysis.time_split.parts.items()
        },
        causes=shares if analysis.costed else None,
        cost=outcome.cost if outcome is not None else None,
        fairness=outcome.fairness if outcome is not None else None,
        accuracy=outcome.accuracy if outcome is not None else None,
        bytes_sent=(outcome.bytes_sent or None) if outcome is not None else None,
    )


def compare_runs(runs: Sequence[MeasuredRun]) -> tuple[Setup, ...]:
    """Gathers repeats and holds setups against the first, in the order in which they come."""
    setups: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        setups.setdefault(run.setup, []).append(run)
    groups = list(setups.values())
    return tuple(_build_setup(group, groups[0]) for group in groups)


def estimate_mean(values: Sequence[float]) -> Estimate:
    """Mean and Student's 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, None)
    reach = (
        _compute_student_quantile(len(values) - 1)
        * statistics.stdev(values)
        / math.sqrt(len(values))
    )
    return Estimate(mean, mean - reach, mean + reach)


def estimate_difference(first: Mapping[Key, float], other: Mapping[Key, float]) -> Estimate:
    """By how much `other` is more than `first`.

    Args:
        first: what was measured, by seed, and which of the runs with it.
        other: the same.

    Returns:
        The difference of the means, and its 95 % interval: of the pairs where both have the same
        seeds, else Welch's.
    """
    if first.keys() == other.keys():
        return estimate_mean([other[key] - first[key] for key in first])
    mean = statistics.fmean(other.values()) - statistics.fmean(first.values())
    if min(len(first), len(other)) < 2:
        return Estimate(mean, None, None)
    errors = [statistics.variance(each.values()) / len(each) for each in (first, other)]
    if not any(errors):
        return Estimate(mean, mean, mean)
    freedom = sum(errors) ** 2 / sum(
        e**2 / (len(each) - 1) for e, each in zip(errors, (first, other), strict=True)
    )
    reach = _compute_student_quantile(freedom) * math.sqrt(sum(errors))
    return Estimate(mean, mean - reach, mean + reach)


def estimate_ratio(first: Mapping[Key, float], other: Mapping[Key, float]) -> Estimate:
    """How many times `first` is `other`: of makespans, how many times as fast `other` is; both
    above 0.

    Args:
        first: what was measured, by seed, and which of the runs with it.
        other: the same.

    Returns:
        The geometric mean of the ratios, and its 95 % interval, as of the difference of their
        logarithms.
    """
    logs, others = (
        {key: math.log(value) for key, value in each.items()} for each in (first, other)
    )
    return _to_exponential(estimate_difference(others, logs))


def _build_setup(group: Sequence[MeasuredRun], first: Sequence[MeasuredRun]) -> Setup:
    costed = [run.causes for run in group if run.causes is not None]
    names = dict.fromkeys(name for run in group for name in run.parts_s)
    makespans, accuracies, sent = (
        _collect_makespans(group),
        _collect_accuracies(group),
        _collect_bytes(group),
    )
    others = (
        None
        if group is first
        else (_collect_makespans(first), _collect_accuracies(first), _collect_bytes(first))
    )
    return Setup(
        name=group[0].setup,
        seeds=tuple(run.seed for run in group),
        makespan_s=_estimate_geometric_mean(makespans),
        speedup=None if others is None else estimate_ratio(others[0], makespans),
        parts_s={
            name: estimate_mean([run.parts_s.get(name, 0.0) for run in group]) for name in names
        },
        lost_share=estimate_mean([sum(each.values()) for each in costed]) if costed else None,
        causes=_merge_causes(costed),
        cost=_estimate_known([run.cost for run in group]),
        fairness=_estimate_known([run.fairness for run in group]),
        accuracy=_estimate_known(list(accuracies.values())),
        accuracy_gain=(
            estimate_difference(others[1], accuracies)
            if others and others[1] and accuracies
            else None
        ),
        bytes_sent=_estimate_geometric_mean(sent) if sent else None,
        bytes_ratio=estimate_ratio(sent, others[2]) if others and others[2] and sent else None,
    )


def _collect_makespans(group: Sequence[MeasuredRun]) -> dict[Key, float]:
    return {key: run.makespan_s for key, run in _iterate_by_seed(group)}


def _collect_accuracies(group: Sequence[MeasuredRun]) -> dict[Key, float]:
    return {key: run.accuracy for key, run in _iterate_by_seed(group) if run.accuracy is not None}


def _collect_bytes(group: Sequence[MeasuredRun]) -> dict[Key, float]:
    return {
        key: float(run.bytes_sent)
        for key, run in _iterate_by_seed(group)
        if run.bytes_sent is not None
    }


def _iterate_by_seed(group: Sequence[MeasuredRun]) -> Iterator[tuple[Key, MeasuredRun]]:
    seen: Counter[int] = Counter()
    for run in group:
        yield (run.seed, seen[run.seed]), run
        seen[run.seed] += 1


def _merge_causes(costed: Sequence[Mapping[str, float]]) -> tuple[FoundCause, ...]:
    subjects = dict.fromkeys(subject for each in costed for subject in each)
    found = [
        FoundCause(
            subject,
            sum(subject in each for each in costed),
            statistics.fmean(e.get(subject, 0.0) for e in costed),
        )
        for subject in subjects
    ]
    return tuple(sorted(found, key=lambda cause: -cause.share))


def _estimate_known(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return estimate_mean(known) if known else None


def _estimate_geometric_mean(values: Mapping[Key, float]) -> Estimate:
    return _to_exponential(estimate_mean([math.log(value) for value in values.values()]))


def _to_exponential(log_estimate: Estimate) -> Estimate:
    return Estimate(
        math.exp(log_estimate.mean),
        None if log_estimate.low is None else math.exp(log_estimate.low),
        None if log_estimate.high is None else math.exp(log_estimate.high),
    )


def _compute_student_quantile(freedom: float) -> float:
    from scipy import stats

    return float(stats.t.ppf(0.975, freedom))
