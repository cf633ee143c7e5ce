"""Policies against published optima, another formulation of the same programs, and theory.

`gavel_throughputs.csv` has the steps per second of the 26 types of jobs on one device, from
`simulation_throughputs.json` of https://github.com/stanford-futuredata/gavel (c4fa400, MIT).
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from laggard.core.errors import InputError
from laggard.workloads.scheduling.cluster_jobs import ClusterJob, ClusterState, DeviceType
from laggard.workloads.scheduling.fair_policies import minimize_finish_time_ratio
from laggard.workloads.scheduling.linear_program import maximize_least, maximize_sum
from laggard.workloads.scheduling.registry import POLICIES, get_policy
from laggard.workloads.scheduling.total_policies import minimize_makespan

PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}
HOURS = 8.0


def published(count: int, *, cyclegan: bool = False) -> ClusterState:
    """All types of jobs, each with eight hours of steps at its speed on a V100."""
    with Path(__file__).with_name("gavel_throughputs.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if cyclegan or row["job"] != "CycleGAN"]
    types = [DeviceType(name, count, price) for name, price in PRICES.items()]
    jobs = [ClusterJob(row["job"], 1, {name: float(row[name]) for name in PRICES}) for row in rows]
    state = ClusterState.at_start(jobs, types)
    return replace(state, steps_left=state.throughput[:, 0] * HOURS)


def normalized(state: ClusterState) -> np.ndarray:
    return state.throughput * (state.scale / state.proportional_throughput)[:, None]


@pytest.mark.parametrize(
    ("count", "optimum"), [(1, 0.144483), (4, 0.577933), (8, 1.079269), (36, 1.273260)]
)
def test_the_fairest_allocation_of_26_jobs_is_the_published_one(count: int, optimum: float) -> None:
    state = published(count, cyclegan=True)
    allocation = get_policy("max_min_fairness").allocate(state)
    assert (normalized(state) * allocation).sum(axis=1).min() == pytest.approx(optimum, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "fair", "makespan", "ratio", "total", "per_price"),
    [
        (4, 0.599185, 18.182261, 0.801088, 488.058653, 391.379760),
        (8, 1.108610, 9.770677, 0.865950, 593.471020, 471.924002),
        (36, 1.273260, 8.000000, 0.785385, 634.466795, 478.813262),
    ],
)
def test_all_programs_of_25_jobs_have_the_published_optima(
    count: int, fair: float, makespan: float, ratio: float, total: float, per_price: float
) -> None:
    state = published(count)
    assert maximize_least(state, normalized(state))[0] == pytest.approx(fair, abs=1e-6)
    assert minimize_makespan(state)[0] == pytest.approx(makespan, abs=1e-5)
    assert minimize_finish_time_ratio(state)[0] == pytest.approx(ratio, abs=1e-6)
    found = get_policy("sum_throughput").allocate(state)
    assert (state.throughput * found).sum() == pytest.approx(total, abs=1e-5)
    found = get_policy("cost").allocate(state)
    assert (state.throughput / state.prices * found).sum() == pytest.approx(per_price, abs=1e-5)


def draw(seed: int, jobs: int, types: int, *, twins: bool) -> ClusterState:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, types)
    kinds = [DeviceType(f"t{k}", int(counts[k]), float(rng.uniform(0.1, 3))) for k in range(types)]
    drawn = [
        ClusterJob(
            f"j{number}",
            int(rng.integers(1, 1000)),
            {kind.name: float(rng.lognormal(0, 1)) for kind in kinds},
            int(rng.integers(1, counts.max() + 1)),
            priority=float(rng.choice([1, 2, 5])),
        )
        for number in range(jobs)
    ]
    if twins:
        drawn += [replace(each, name=f"{each.name} again") for each in drawn]
    return ClusterState.at_start(drawn, kinds)


def solve_plainly(state: ClusterState, value: np.ndarray) -> float:
    """The greatest least value, with a variable for every job, by the simplex method."""
    jobs, types = value.shape
    size = jobs * types + 1
    rows, limits = [], []
    for job in range(jobs):
        row = np.zeros(size)
        row[job * types : (job + 1) * types] = -value[job]
        row[-1] = 1.0
        rows.append(row)
        limits.append(0.0)
        row = np.zeros(size)
        row[job * types : (job + 1) * types] = 1.0
        rows.append(row)
        limits.append(1.0)
    for kind in range(types):
        row = np.zeros(size)
        row[kind : jobs * types : types] = state.scale
        rows.append(row)
        limits.append(float(state.counts[kind]))
    gain = np.zeros(size)
    gain[-1] = -1.0
    return float(-linprog(gain, np.array(rows), np.array(limits), method="highs-ds").fun)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 4), st.booleans())
def test_merged_jobs_have_the_optimum_of_single_ones(
    seed: int, jobs: int, types: int, twins: bool
) -> None:
    state = draw(seed, jobs, types, twins=twins)
    bound, allocation = maximize_least(state, normalized(state))
    assert bound == pytest.approx(solve_plainly(state, normalized(state)), rel=1e-6)
    reached = (normalized(state) * allocation).sum(axis=1)
    assert reached.min() >= bound * (1 - 1e-6)
    even = (normalized(state) * maximize_least(state, normalized(state), fill=False)[1]).sum(axis=1)
    assert even == pytest.approx(np.full(len(even), bound), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 4))
def test_every_policy_keeps_to_time_and_devices(seed: int, jobs: int, types: int) -> None:
    state = draw(seed, jobs, types, twins=False)
    for policy in POLICIES.values():
        allocation = policy.allocate(state)
        assert (allocation >= 0).all(), policy.name
        assert (allocation.sum(axis=1) <= 1 + 1e-6).all(), policy.name
        used = state.scale @ allocation
        assert (used <= state.counts + 1e-6).all(), policy.name


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_no_allocation_has_a_better_worst_finish_time(seed: int, jobs: int) -> None:
    state = draw(seed, jobs, 3, twins=False)
    rng = np.random.default_rng(seed)
    state = replace(state, present_s=rng.uniform(0, 50, jobs), isolated_s=rng.uniform(0, 50, jobs))
    ratio, allocation = minimize_finish_time_ratio(state)
    isolated_s = state.isolated_s + state.steps_left / state.isolated_throughput

    def worst(chosen: np.ndarray) -> float:
        speed = (state.throughput * chosen).sum(axis=1)
        return float(((state.present_s + state.steps_left / speed) / isolated_s).max())

    assert worst(allocation) == pytest.approx(ratio, rel=1e-4)
    # A ratio that is less needs speeds that no allocation has.
    needed = state.steps_left / (ratio * 0.999 * isolated_s - state.present_s)
    if (needed > 0).all():
        assert solve_plainly(state, state.throughput / needed[:, None]) < 1.0


def test_the_same_service_is_shared_by_all_but_no_job_has_more_than_all_of_it() -> None:
    types = [DeviceType("fast", 1), DeviceType("slow", 3)]
    jobs = [ClusterJob("one", 1, {"fast": 1.0, "slow": 1.0}, priority=8.0)]
    jobs += [ClusterJob(f"j{number}", 1, {"fast": 1.0, "slow": 1.0}) for number in range(6)]
    allocation = get_policy("las").allocate(ClusterState.at_start(jobs, types))
    # The first one is always on a device; the other six share the three that are left.
    assert allocation.sum(axis=1).tolist() == pytest.approx([1.0] + [0.5] * 6)
    assert allocation[0].tolist() == pytest.approx([0.25, 0.75])


def test_nobody_overtakes_the_first_that_waits() -> None:
    types = [DeviceType("fast", 2), DeviceType("slow", 1)]
    jobs = [
        ClusterJob("slow is better", 1, {"fast": 1.0, "slow": 2.0}),
        ClusterJob("gang", 1, {"fast": 1.0}, scale=2),
        ClusterJob("next gang", 1, {"fast": 1.0}, scale=2),
        ClusterJob("small", 1, {"slow": 1.0}),
    ]
    allocation = get_policy("fifo").allocate(ClusterState.at_start(jobs, types))
    assert allocation.tolist() == [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


def test_a_policy_of_costs_needs_prices() -> None:
    state = ClusterState.at_start([ClusterJob("a", 1, {"t": 1.0})], [DeviceType("t", 1)])
    with pytest.raises(InputError, match="price above 0"):
        get_policy("cost").allocate(state)
    with pytest.raises(InputError, match="use one of fifo, las"):
        get_policy("fairest")
    assert maximize_sum(state, state.throughput).tolist() == [[1.0]]
