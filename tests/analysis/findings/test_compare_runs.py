"""Runs side by side: intervals against those of SciPy's tests, and what is told of repeats."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from laggard.analysis.estimates.estimate import (
    estimate_difference,
    estimate_mean,
    estimate_ratio,
)
from laggard.analysis.evaluate.synthetic.run_generator import generate_run
from laggard.analysis.evaluate.synthetic.trace_spec import Injection
from laggard.analysis.findings.analysis_result import analyze_lockstep
from laggard.analysis.findings.compare_runs import (
    MeasuredRun,
    compare_runs,
    measure_run,
)
from tests.analysis.traces import quiet

MAKESPANS = st.lists(st.floats(1.0, 100.0), min_size=2, max_size=8)


def measured(
    setup: str, seed: int, makespan_s: float, causes: dict[str, float] | None = None
) -> MeasuredRun:
    return MeasuredRun(
        setup,
        seed,
        makespan_s,
        {"compute": 0.6 * makespan_s, "wait": 0.4 * makespan_s},
        causes,
        None,
        1.0,
    )


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=10))
@settings(deadline=None)
def test_a_means_interval_is_students(values: list[float]) -> None:
    found = estimate_mean(values)
    assert found.low is not None
    assert found.high is not None
    if np.std(values) > 1e-9:
        ends = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert (found.low, found.high) == (
            pytest.approx(ends.low, abs=1e-6),
            pytest.approx(ends.high, abs=1e-6),
        )
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)


@given(MAKESPANS, MAKESPANS)
@settings(deadline=None)
def test_setups_of_other_seeds_are_compared_as_welch_did(
    first: list[float], other: list[float]
) -> None:
    found = estimate_ratio(
        {(k, 0): v for k, v in enumerate(first)}, {(k, 0): v for k, v in enumerate(other, 100)}
    )
    logs, others = np.log(first), np.log(other)
    assert found.mean == pytest.approx(math.exp(logs.mean() - others.mean()))
    if min(logs.std(), others.std()) > 1e-6:
        ends = stats.ttest_ind(logs, others, equal_var=False).confidence_interval(0.95)
        assert (found.low, found.high) == (
            pytest.approx(math.exp(ends.low)),
            pytest.approx(math.exp(ends.high)),
        )


@given(st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 100.0)), min_size=2, max_size=8))
@settings(deadline=None)
def test_the_same_seeds_are_paired(pairs: list[tuple[float, float]]) -> None:
    first, other = ({(seed, 0): pair[side] for seed, pair in enumerate(pairs)} for side in (0, 1))
    found = estimate_ratio(first, other)
    logs, others = np.log(list(first.values())), np.log(list(other.values()))
    if (logs - others).std() > 1e-6:
        ends = stats.ttest_rel(logs, others).confidence_interval(0.95)
        assert (found.low, found.high) == (
            pytest.approx(math.exp(ends.low)),
            pytest.approx(math.exp(ends.high)),
        )


@given(MAKESPANS, MAKESPANS)
@settings(deadline=None)
def test_differences_are_those_of_the_same_tests(first: list[float], other: list[float]) -> None:
    """Of other seeds, Welch's; of as many of the same, Student's of the pairs."""
    apart = estimate_difference(
        {(k, 0): v for k, v in enumerate(first)}, {(k, 0): v for k, v in enumerate(other, 100)}
    )
    assert apart.mean == pytest.approx(np.mean(other) - np.mean(first))
    if min(np.std(first), np.std(other)) > 1e-6:
        ends = stats.ttest_ind(other, first, equal_var=False).confidence_interval(0.95)
        assert (apart.low, apart.high) == (pytest.approx(ends.low), pytest.approx(ends.high))
    count = min(len(first), len(other))
    paired = estimate_difference(
        *({(k, 0): v for k, v in enumerate(each[:count])} for each in (first, other))
    )
    if np.std(np.subtract(other[:count], first[:count])) > 1e-6:
        ends = stats.ttest_rel(other[:count], first[:count]).confidence_interval(0.95)
        assert (paired.low, paired.high) == (pytest.approx(ends.low), pytest.approx(ends.high))


def test_who_learns_less_or_sends_less_is_told_against_the_first() -> None:
    """Accuracies in points, bytes as a part; a run without either counts in neither."""
    plain = [
        replace(measured("plain", s, 10.0), accuracy=a, bytes_sent=b)
        for s, a, b in ((1, 0.98, 400), (2, 0.96, 400))
    ]
    sparse = [
        replace(measured("sparse", s, 5.0), accuracy=a, bytes_sent=b)
        for s, a, b in ((1, 0.97, 100), (2, 0.95, 100))
    ]
    blind = measured("blind", 1, 5.0)
    first, second, third = compare_runs([*plain, *sparse, blind])
    assert (first.accuracy_gain, first.bytes_ratio) == (None, None)
    assert first.accuracy is not None
    assert first.accuracy.mean == pytest.approx(0.97)
    assert second.accuracy_gain is not None
    assert (second.accuracy_gain.mean, second.accuracy_gain.high) == (
        pytest.approx(-0.01),
        pytest.approx(-0.01),
    )
    assert second.bytes_ratio is not None
    assert second.bytes_ratio.mean == pytest.approx(0.25)
    assert (third.accuracy, third.accuracy_gain, third.bytes_sent, third.bytes_ratio) == (
        None,
        None,
        None,
        None,
    )


def test_one_run_each_has_no_interval() -> None:
    slow, fast = compare_runs([measured("slow", 1, 20.0), measured("fast", 1, 10.0)])
    assert slow.speedup is None
    assert fast.speedup is not None
    assert (fast.speedup.mean, fast.speedup.low) == (pytest.approx(2.0), None)
    assert (slow.makespan_s.mean, slow.makespan_s.low) == (pytest.approx(20.0), None)


def test_runs_with_one_seed_are_repeats_too() -> None:
    slow, fast = compare_runs(
        [
            *(measured("slow", 1, s) for s in (20.0, 22.0)),
            *(measured("fast", 1, s) for s in (10.0, 11.0)),
        ]
    )
    assert fast.speedup is not None
    assert (fast.speedup.mean, fast.speedup.low) == (pytest.approx(2.0), pytest.approx(2.0))
    assert slow.makespan_s.low is not None


def test_causes_are_told_over_all_repeats() -> None:
    runs = [
        measured("a", 1, 10.0, {"edge": 0.2, "fog": 0.1}),
        measured("a", 2, 10.0, {"edge": 0.4}),
        measured("a", 3, 10.0, None),
    ]
    (setup,) = compare_runs(runs)
    assert [(cause.subject, cause.runs, cause.share) for cause in setup.causes] == [
        ("edge", 2, pytest.approx(0.3)),
        ("fog", 1, pytest.approx(0.05)),
    ]
    assert setup.lost_share is not None
    assert setup.lost_share.mean == pytest.approx(0.35)
    assert setup.seeds == (1, 2, 3)
    assert setup.parts_s["wait"].mean == pytest.approx(4.0)


def test_a_run_is_measured_as_its_analysis_says() -> None:
    run = generate_run(quiet(4, 60, Injection("compute", 3.0, rank=2)))
    analysis = analyze_lockstep(run)
    found = measure_run(run, analysis, "here")
    assert found.causes is not None
    ((subject, share),) = found.causes.items()
    assert subject.startswith(run.hosts[2].host)
    assert subject.endswith("compute, deterministic")
    assert share == pytest.approx(analysis.lost_s / analysis.makespan_s)
    assert sum(found.parts_s.values()) == pytest.approx(float(analysis.time_split.total_s.mean()))
    assert run.record is not None
    assert run.record.outcome is not None
    assert (found.accuracy, found.bytes_sent) == (
        run.record.outcome.accuracy,
        run.record.outcome.bytes_sent or None,
    )
