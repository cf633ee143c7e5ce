"""Stalls of runs whose parts are known, against sums that are computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.stalls.stall_estimates import STALL_KINDS, StallRuns, estimate_stalls
from laggard.analysis.tables.timelines.step_parts import STEP_PARTS, StepParts

HOSTS, TIERS = ("edge.a", "edge.b", "cloud.c"), ("edge", "edge", "cloud")
STEPS = 8


def make_run(hosts: tuple[str, ...] = HOSTS, **seconds: float) -> StepParts:
    """A run whose hosts spend these seconds per sample, the second one twice as many."""
    rank = np.repeat(np.arange(len(hosts)), STEPS)
    factor = np.where(rank == 1, 2.0, 1.0)
    tiers = tuple(TIERS[HOSTS.index(host)] for host in hosts)
    parts = {part: seconds.get(part, 0.0) * factor for part in STEP_PARTS}
    return StepParts(hosts, tiers, rank, parts)


RUNS = StallRuns(
    alone=make_run(compute=10.0, fetch=0.5, prep=0.25),
    warm=make_run(compute=11.0, fetch=1.0, prep=2.0),
    cold=make_run(compute=9.0, fetch=7.0, prep=3.0),
    tiers={"edge": make_run(HOSTS[:2], compute=10.0, transfer=4.0, wait=1.0)},
    together=make_run(compute=12.0, transfer=9.0, wait=5.0),
)


def test_each_stall_is_a_difference_of_the_part_that_it_delays() -> None:
    stalls = estimate_stalls([RUNS], frozenset({"edge.a"}))
    assert stalls.compute_s.mean == 10.0
    assert stalls.contention_s.mean == 2.0
    assert {kind: each.mean for kind, each in stalls.stalls_s.items()} == {
        "prep": 2.25,
        "fetch": 6.0,
        "interconnect": 4.0,
        "network": 5.0,
        "wait": 5.0,
    }
    assert stalls.total_s == 10.0 + 2.25 + 6.0 + 4.0 + 5.0 + 5.0


def test_a_tier_has_the_mean_of_its_hosts() -> None:
    tier = estimate_stalls([RUNS], frozenset(HOSTS[:2]))
    assert tier.stalls_s["fetch"].mean == pytest.approx(6.0 * 1.5)
    assert tier.stalls_s["network"].mean == pytest.approx(5.0 * 1.5)


def test_a_tier_of_one_worker_has_no_interconnect() -> None:
    alone = estimate_stalls([RUNS], frozenset({"cloud.c"}))
    assert alone.stalls_s["interconnect"].mean == 0.0
    assert alone.stalls_s["network"].mean == 9.0


def test_one_tier_has_no_network_and_waits_within_itself() -> None:
    near = StallRuns(RUNS.alone, RUNS.warm, RUNS.cold, RUNS.tiers, together=None)
    stalls = estimate_stalls([near], frozenset({"edge.a"}))
    assert stalls.stalls_s["network"].mean == 0.0
    assert stalls.stalls_s["wait"].mean == 1.0


def test_equal_runs_have_intervals_of_no_width_and_one_worker_has_no_stall_of_others() -> None:
    run = make_run(HOSTS[:1], compute=3.0)
    stalls = estimate_stalls([StallRuns(run, run, run, {}, None)], frozenset(HOSTS[:1]))
    assert all(stalls.stalls_s[kind].mean == 0.0 for kind in STALL_KINDS)
    assert (stalls.compute_s.low, stalls.compute_s.high) == (3.0, 3.0)


@given(seconds=st.lists(st.floats(0.0, 100.0), min_size=2, max_size=6))
def test_intervals_of_repeats_are_students(seconds: list[float]) -> None:
    from scipy import stats

    repeats = [
        StallRuns(make_run(), make_run(), make_run(fetch=each), {}, None) for each in seconds
    ]
    found = estimate_stalls(repeats, frozenset({"edge.a"})).stalls_s["fetch"]
    mean, error = np.mean(seconds), stats.sem(seconds)
    assert found.mean == pytest.approx(mean)
    reach = stats.t.ppf(0.975, len(seconds) - 1) * error
    assert found.low == pytest.approx(mean - reach, abs=1e-9)
    assert found.high == pytest.approx(mean + reach, abs=1e-9)


def test_the_interval_of_one_run_is_welchs() -> None:
    from scipy import stats

    draw = np.random.default_rng(3)
    cold, warm = draw.normal(5.0, 1.0, STEPS), draw.normal(2.0, 0.3, STEPS)
    empty = np.zeros(STEPS)

    def run(fetch: np.ndarray[tuple[int], np.dtype[np.float64]]) -> StepParts:
        parts = {part: fetch if part == "fetch" else empty for part in STEP_PARTS}
        return StepParts(("edge.a",), ("edge",), np.zeros(STEPS, dtype=np.int64), parts)

    runs = StallRuns(run(empty), run(warm), run(cold), {}, None)
    found = estimate_stalls([runs], frozenset({"edge.a"})).stalls_s["fetch"]
    oracle = stats.ttest_ind(cold, warm, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high))
