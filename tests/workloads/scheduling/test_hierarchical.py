"""Policy `hierarchical` against closed forms, another formulation, and a simulated cluster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog

from laggard.core.cost_model.arrays import FloatArray
from laggard.workloads.scheduling.cluster_jobs import (
    ClusterJob,
    ClusterState,
    DeviceType,
    JobTeam,
    TeamOrder,
)
from laggard.workloads.scheduling.cluster_run import RoundOptions, run_cluster
from laggard.workloads.scheduling.hierarchical import HierarchicalFairness


def fill(most: FloatArray, weight: FloatArray, total: float) -> FloatArray:
    """Return min(most, level x weight) with the sum `total`, or `most` if that is less."""
    if most.sum() <= total:
        return most
    level = brentq(lambda each: np.minimum(most, each * weight).sum() - total, 0, 1e6)
    return np.minimum(most, level * weight)


def share_between_teams(teams: list[JobTeam], priorities: list[FloatArray], total: int) -> list:
    """Return the devices of each job of each team, if all jobs run on one type equally well."""
    sizes = np.array([float(len(each)) for each in priorities])
    parts = fill(sizes, np.array([each.weight for each in teams]), float(total))
    return [
        fill(np.ones(len(priority)), priority, part)
        if team.order is TeamOrder.FAIRNESS
        else np.clip(part - np.arange(len(priority)), 0.0, 1.0)
        for team, priority, part in zip(teams, priorities, parts, strict=True)
    ]


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    count=st.integers(1, 20),
)
def test_on_one_type_teams_and_then_jobs_fill_up(seed: int, sizes: list[int], count: int) -> None:
    rng = np.random.default_rng(seed)
    teams = [
        JobTeam(f"t{number}", float(rng.uniform(0.5, 4)), TeamOrder(rng.choice([*TeamOrder])))
        for number in range(len(sizes))
    ]
    priorities = [rng.uniform(0.5, 3, size) for size in sizes]
    jobs = [
        ClusterJob(
            f"{team.name}-{place}", 10, {"t": float(rng.uniform(1, 9))}, priority=each, team=team
        )
        for team, priority in zip(teams, priorities, strict=True)
        for place, each in enumerate(priority.tolist())
    ]
    state = ClusterState.at_start(jobs, [DeviceType("t", count)])
    expected = np.concatenate(share_between_teams(teams, priorities, count))
    found = HierarchicalFairness().allocate(state).ravel()
    assert found == pytest.approx(expected, abs=2e-4)


def find_fairest(state: ClusterState, value: FloatArray) -> FloatArray:
    """Return the values of all jobs, if the least is greatest, then the second least, and so on.

    Whether a job can have more is asked by a program for each job, by another solver.
    """
    jobs, types = value.shape
    time = np.kron(np.eye(jobs), np.ones((1, types)))
    devices = np.kron(state.scale[None, :].astype(float), np.eye(types))
    rows, limits = np.vstack([time, devices]), np.r_[np.ones(jobs), state.counts.astype(float)]
    worth = np.zeros((jobs, jobs * types))
    for job in range(jobs):
        worth[job, job * types : (job + 1) * types] = value[job]
    level = np.zeros(jobs)
    growing = np.ones(jobs, dtype=bool)

    def maximize(gain: FloatArray, rise: FloatArray) -> float:
        found = linprog(
            -gain,
            A_ub=np.vstack([np.c_[rows, np.zeros(len(rows))], np.c_[-worth, rise]]),
            b_ub=np.r_[limits, -level * (1 - 1e-9)],
            method="highs-ds",
        )
        assert found.status == 0
        return -float(found.fun)

    last = np.r_[np.zeros(jobs * types), 1.0]
    while growing.any():
        level = level + growing * maximize(last, growing.astype(float))
        most = [maximize(np.r_[worth[job], 0.0], np.zeros(jobs)) for job in range(jobs)]
        growing &= np.array(most) > level + 1e-5
    return level


@pytest.mark.parametrize("seed", range(25))
def test_on_several_types_nobody_can_have_more_unless_a_poorer_one_has_less(seed: int) -> None:
    rng = np.random.default_rng(seed)
    types = [DeviceType(f"t{kind}", int(rng.integers(1, 5))) for kind in range(3)]
    jobs = [
        ClusterJob(
            f"j{number}",
            10,
            {each.name: float(speed) for each, speed in zip(types, speeds, strict=True)},
        )
        for number, speeds in enumerate(
            rng.uniform(0.1, 9, (7, 3)) * rng.choice([0, 1], (7, 3), p=(0.4, 0.6)) + 1e-3
        )
    ]
    state = ClusterState.at_start(jobs, types)
    value = state.throughput / state.proportional_throughput[:, None]
    allocation = HierarchicalFairness().allocate(state)
    assert (allocation.sum(axis=1) <= 1 + 1e-6).all()
    assert (state.scale @ allocation <= state.counts + 1e-6).all()
    found = np.sort((value * allocation).sum(axis=1))
    assert found == pytest.approx(np.sort(find_fairest(state, value)), rel=1e-3, abs=1e-3)


def test_a_team_of_many_jobs_receives_no_more_than_its_weight() -> None:
    many, few = JobTeam("many", 1.0), JobTeam("few", 3.0)
    types = [DeviceType("t", 4)]
    jobs = [
        *(ClusterJob(f"m{n}", 1000, {"t": 1.0}, team=many) for n in range(12)),
        *(ClusterJob(f"f{n}", 1000, {"t": 1.0}, team=few) for n in range(4)),
    ]
    result = run_cluster(jobs, types, HierarchicalFairness(), RoundOptions(10.0, 10.0))
    # Three of four devices are for `few` until its jobs end, after 4000 / 3 s.
    assert result.finish_s[12:] == pytest.approx(4000 / 3, rel=0.03)
    assert result.makespan_s == pytest.approx(16_000 / 4, rel=0.01)


def test_jobs_of_a_team_may_come_one_after_another() -> None:
    queue = JobTeam("queue", order=TeamOrder.FIFO)
    jobs = [ClusterJob(f"q{n}", 100, {"t": 1.0}, team=queue) for n in range(3)]
    result = run_cluster(jobs, [DeviceType("t", 1)], HierarchicalFairness(), RoundOptions(10, 10))
    assert result.finish_s == pytest.approx([100, 200, 300])
