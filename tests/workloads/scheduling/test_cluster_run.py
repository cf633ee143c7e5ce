"""Rounds follow allocations; jobs of known lengths end when theory says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.workloads.scheduling.cluster_jobs import ClusterJob, ClusterState, DeviceType
from laggard.workloads.scheduling.cluster_run import RoundOptions, run_cluster
from laggard.workloads.scheduling.registry import POLICIES, get_policy

ONE = [DeviceType("t", 1)]
ROUNDS = RoundOptions(round_s=10.0, allocation_s=50.0)


@dataclass(frozen=True)
class Fixed:
    """Policy that always gives a job the same part of the only type."""

    parts: Mapping[str, float]
    name: str = "fixed"
    aware: bool = True
    in_turn: bool = False

    def allocate(self, state: ClusterState) -> np.ndarray:
        return np.array([[self.parts[job.name]] for job in state.jobs])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_times_come_to_follow_the_allocation(weights: list[int]) -> None:
    parts = {f"j{number}": weight / sum(weights) for number, weight in enumerate(weights)}
    # All jobs end at about the same time, since their steps are in proportion to their parts.
    jobs = [ClusterJob(name, round(4000 * part), {"t": 1.0}) for name, part in parts.items()]
    result = run_cluster(jobs, ONE, Fixed(parts), RoundOptions(10.0, 1e9))
    received = np.zeros(len(parts))
    for turn in result.turns:
        received[turn.job] += max(0.0, min(turn.end_s, 2000.0) - turn.start_s)
    assert received.sum() == pytest.approx(2000.0)
    # Within two rounds.
    assert received == pytest.approx(2000.0 * np.array([*parts.values()]), abs=20.0)


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_alone_takes_its_steps(name: str) -> None:
    types = [DeviceType("slow", 2, 1.0), DeviceType("fast", 2, 1.0)]
    job = ClusterJob("a", 1000, {"slow": 2.0, "fast": 5.0}, arrival_s=7.0)
    result = run_cluster([job], types, get_policy(name), ROUNDS)
    slowest_s = 1000 / 2.0
    assert 1000 / 5.0 - 1e-6 <= result.completion_s[0] <= slowest_s + 1e-6
    if get_policy(name).aware and name != "makespan":
        assert result.completion_s[0] == pytest.approx(200.0)
    assert result.received_s.sum() == pytest.approx(result.completion_s[0])


def test_jobs_in_turn_end_one_after_another() -> None:
    jobs = [ClusterJob(name, 100, {"t": 1.0}) for name in "abc"]
    result = run_cluster(jobs, ONE, get_policy("fifo"), RoundOptions(10.0, 10.0))
    assert result.finish_s.tolist() == pytest.approx([100.0, 200.0, 300.0])
    assert [turn.job for turn in sorted(result.turns, key=lambda each: each.start_s)] == [0, 1, 2]
    # On a third of the device, each would have taken longer as long as others were there.
    assert result.isolated_s.tolist() == pytest.approx([300.0, 200.0, 100.0])


def test_a_start_costs_time() -> None:
    jobs = [ClusterJob("a", 100, {"t": 1.0})]
    options = RoundOptions(10.0, 50.0, preemption_s=3.0)
    found = run_cluster(jobs, ONE, get_policy("fifo"), options)
    # Only the first of its rounds starts it.
    assert found.finish_s[0] == pytest.approx(103.0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(sorted(POLICIES)))
def test_no_job_is_lost_and_no_device_is_used_twice(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    types = [DeviceType("a", 2, 1.0), DeviceType("b", 3, 0.5)]
    arrivals = np.sort(rng.uniform(0, 300, 12))
    jobs = [
        ClusterJob(
            f"j{number}",
            int(rng.integers(1, 400)),
            {"a": float(rng.uniform(0.5, 4)), "b": float(rng.uniform(0.5, 4))},
            int(rng.integers(1, 3)),
            float(arrivals[number]),
        )
        for number in range(12)
    ]
    result = run_cluster(jobs, types, get_policy(name), ROUNDS)
    assert np.isfinite(result.finish_s).all()
    assert (result.finish_s > result.arrival_s).all()
    done = [
        sum(
            result.received_s[number, kind] * job.throughput[each.name]
            for kind, each in enumerate(types)
        )
        for number, job in enumerate(jobs)
    ]
    assert done == pytest.approx([job.steps for job in jobs])
    for kind, each in enumerate(types):
        turns = [turn for turn in result.turns if turn.kind == kind]
        for moment in {turn.start_s for turn in turns}:
            running = sum(
                jobs[turn.job].scale for turn in turns if turn.start_s <= moment < turn.end_s
            )
            assert running <= each.count


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([("a", 0.0, 1), ("a", 1.0, 1)], "two jobs have this name"),
        ([("a", 5.0, 1), ("b", 1.0, 1)], "sort the jobs"),
        ([("a", 0.0, 2)], "needs 2 devices"),
    ],
)
def test_impossible_jobs_are_refused(jobs: list[tuple[str, float, int]], message: str) -> None:
    built = [ClusterJob(name, 1, {"t": 1.0}, scale, at) for name, at, scale in jobs]
    with pytest.raises(InputError, match=message):
        run_cluster(built, ONE, get_policy("fifo"))


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": 0},
        {"scale": 0},
        {"arrival_s": -1.0},
        {"priority": 0.0},
        {"throughput": {"t": float("nan")}},
        {"throughput": {"t": 0.0}},
        {"throughput": {}},
    ],
)
def test_wrong_numbers_of_a_job_are_refused(bad: dict[str, object]) -> None:
    values: dict[str, object] = {"name": "a", "steps": 1, "throughput": {"t": 1.0}} | bad
    with pytest.raises(InputError, match="a: "):
        ClusterJob(**values)  # type: ignore[arg-type]


def test_a_round_is_longer_than_a_start() -> None:
    with pytest.raises(InputError, match="give longer rounds"):
        RoundOptions(round_s=10.0, preemption_s=10.0)


def test_a_turn_may_do_steps_beyond_its_round() -> None:
    jobs = [ClusterJob("a", 100, {"t": 1.5}), ClusterJob("b", 100, {"t": 1.5})]
    result = run_cluster(
        jobs, [DeviceType("t", 1)], POLICIES["las"], RoundOptions(10.0, 10.0, overrun=2)
    )
    # 15 steps fit into a round, so a turn has 17, and the last of six turns 15.
    by_job = [[each for each in result.turns if each.job == job] for job in range(2)]
    assert [len(each) for each in by_job] == [6, 6]
    assert by_job[0][0].end_s == pytest.approx(17 / 1.5)
    assert result.received_s.sum(axis=1) == pytest.approx([100 / 1.5] * 2)
    assert result.makespan_s == pytest.approx(200 / 1.5)
