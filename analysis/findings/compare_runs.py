"""Comparison of setups: makespan, accuracy, bytes, time split and causes, over repeated runs.

Runs that differ only in their seeds are repeats of one setup. Every setup is compared with the
first one, with 95 % confidence intervals:

- Makespans and bytes are averaged as logarithms, so that twice as fast and half as fast cancel
  out. Accuracies are averaged as they are.
- Two setups with the same seeds are compared seed by seed. Otherwise Welch's interval for the
  difference of two means is used (B. L. Welch, Biometrika 34, 1947).
- Two setups are equally accurate within a margin if the interval of the difference of their
  accuracies lies inside it (D. J. Schuirmann's two one-sided tests, J. Pharmacokinet. Biopharm.
  15, 1987, at 2.5 % each). An interval that contains zero but exceeds the margin only shows that
  there were too few repeats.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from laggard.analysis.estimates.estimate import (
    Estimate,
    Key,
    estimate_difference,
    estimate_geometric_mean,
    estimate_mean,
    estimate_ratio,
)
from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.answer import get_subject, group_findings
from laggard.analysis.tables.load_run import RunData


@dataclass(frozen=True)
class MeasuredRun:
    """Measurements of one run that are compared.

    Attributes:
        setup: name of the setup that all its repeats share.
        seed: seed of the run.
        makespan_s: virtual seconds from the first step to the stopping rule.
        accuracy: share of the test set that the final model classifies correctly; None without
            evaluation.
        bytes_sent: bytes that all workers sent until then; None if they were not counted.
        parts_s: mean seconds over ranks, by part of the time split (see `TimeSplit`).
        causes: share of the makespan that each cause costs, by its description; None if costs were
            not computed.
        cost: price of the run, if the scenario has prices.
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
    """Cause over the repeats of a setup.

    Attributes:
        subject: description of the cause.
        runs: number of runs in which it was found.
        share: mean share of the makespan over all runs of the setup.
    """

    subject: str
    runs: int
    share: float


@dataclass(frozen=True)
class Setup:
    """Repeats of one setup, compared with the first setup.

    Attributes:
        name: settings that the repeats share.
        seeds: seed of every run.
        makespan_s: geometric mean of the makespans.
        speedup: makespan of the first setup divided by this one's; None for the first setup.
        accuracy: accuracy at the end of the runs.
        accuracy_gain: accuracy minus the first setup's; None for the first setup.
        bytes_sent: geometric mean of the sent bytes.
        bytes_ratio: sent bytes divided by the first setup's; None for the first setup.
        parts_s: seconds by part of the time split.
        lost_share: share of the makespan that all causes cost together; None if costs were not
            computed.
        causes: found causes, most expensive first.
        cost: price of a run.
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
    """Return the measurements of a run that was analyzed."""
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
    """Group repeats and compare every setup with the first, in the order of their first runs."""
    setups: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        setups.setdefault(run.setup, []).append(run)
    groups = list(setups.values())
    return tuple(_build_setup(group, groups[0]) for group in groups)


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
        makespan_s=estimate_geometric_mean(list(makespans.values())),
        speedup=None if others is None else estimate_ratio(others[0], makespans),
        parts_s={
            name: estimate_mean([run.parts_s.get(name, 0.0) for run in group], 0.0)
            for name in names
        },
        lost_share=_estimate_share([sum(each.values()) for each in costed]),
        causes=_merge_causes(costed),
        cost=_estimate_known([run.cost for run in group], math.inf),
        fairness=_estimate_share([run.fairness for run in group]),
        accuracy=_estimate_share(list(accuracies.values())),
        accuracy_gain=(
            estimate_difference(others[1], accuracies, 1.0)
            if others and others[1] and accuracies
            else None
        ),
        bytes_sent=estimate_geometric_mean(list(sent.values())) if sent else None,
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
    # Several runs of a setup may have one seed; the counter pairs them in their order.
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


def _estimate_share(values: Sequence[float | None]) -> Estimate | None:
    return _estimate_known(values, 1.0)


def _estimate_known(values: Sequence[float | None], most: float) -> Estimate | None:
    known = [value for value in values if value is not None]
    return estimate_mean(known, 0.0, most) if known else None
