"""Policy `gandiva`: time slices for all jobs, and pairs where there are not enough devices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.workloads.scheduling.cluster_jobs import (
    ClusterJob,
    ClusterState,
    DeviceType,
    PairSpeeds,
)
from laggard.workloads.scheduling.cluster_run import RoundOptions, run_cluster
from laggard.workloads.scheduling.fair_policies import LeastAttainedService
from laggard.workloads.scheduling.packing import PackedSlices
from laggard.workloads.scheduling.rounds import NOWHERE


def make_jobs(count: int, steps: int = 100) -> list[ClusterJob]:
    return [
        ClusterJob(f"j{n}", steps, {"t": 1.0, "u": 2.0}, kind="ab"[n % 2]) for n in range(count)
    ]


def make_pairs(relative: float) -> PairSpeeds:
    return {("a", "b"): {"t": (relative, relative), "u": (2 * relative, 2 * relative)}}


@pytest.mark.parametrize(("jobs", "relative"), [(3, 0.9), (8, 0.5), (8, 0.0)])
def test_who_has_a_device_or_gains_nothing_is_not_packed(jobs: int, relative: float) -> None:
    types = [DeviceType("t", 2), DeviceType("u", 1)]
    state = ClusterState.at_start(make_jobs(jobs), types, make_pairs(relative))
    grants = PackedSlices().grant(state)
    assert (grants.partner == NOWHERE).all()
    assert (grants.allocation == LeastAttainedService().allocate(state)).all()


@given(jobs=st.integers(1, 14), first=st.integers(1, 5), second=st.integers(1, 5))
def test_no_more_pairs_than_devices_are_missing(jobs: int, first: int, second: int) -> None:
    types = [DeviceType("t", first), DeviceType("u", second)]
    state = ClusterState.at_start(make_jobs(jobs), types, make_pairs(0.8))
    grants = PackedSlices().grant(state)
    shared = np.flatnonzero(grants.partner != NOWHERE)
    assert len(shared) == 2 * min(max(0, jobs - first - second), jobs // 2)
    assert (grants.partner[grants.partner[shared]] == shared).all()
    assert {state.jobs[each].kind for each in shared} <= {"a", "b"}
    assert (grants.allocation[shared] == grants.allocation[grants.partner[shared]]).all()
    time = grants.devices @ grants.allocation
    assert (time <= state.counts + 1e-9).all()
    if jobs >= first + second:
        assert time == pytest.approx(state.counts)


def test_a_pair_that_is_faster_together_ends_sooner() -> None:
    types, options = [DeviceType("t", 1)], RoundOptions(10.0, 1e6)
    jobs = [ClusterJob(f"j{n}", 80, {"t": 1.0}, kind="ab"[n % 2]) for n in range(2)]
    sliced = run_cluster(jobs, types, PackedSlices(), options)
    packed = run_cluster(jobs, types, PackedSlices(), options, {("a", "b"): {"t": (0.8, 0.8)}})
    assert sliced.makespan_s == pytest.approx(160)
    assert packed.finish_s == pytest.approx([100, 100])
    assert packed.device_s == pytest.approx([100])


def test_a_pair_and_a_job_alone_take_turns_on_one_device() -> None:
    types = [DeviceType("t", 1)]
    jobs = [ClusterJob(f"j{n}", 800, {"t": 1.0}, kind="ac"[n // 2]) for n in range(3)]
    pairs: PairSpeeds = {("a", "a"): {"t": (0.8, 0.8)}}
    result = run_cluster(jobs, types, PackedSlices(), RoundOptions(10.0, 1e6), pairs)
    # Two jobs of three are missing a device, but one pair is all that there can be.
    by_job = [[turn for turn in result.turns if turn.job == job] for job in range(3)]
    assert [(t.start_s, t.end_s) for t in by_job[0]] == [(t.start_s, t.end_s) for t in by_job[1]]
    spans = sorted((t.start_s, t.end_s) for t in (*by_job[0], *by_job[2]))
    assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(spans))
    # Half of the time for each: the job alone ends after 1600 s, the pair 200 s later.
    assert result.finish_s[2] == pytest.approx(1600, abs=20)
    assert result.makespan_s == pytest.approx(1800, abs=20)


@pytest.mark.parametrize("seed", range(10))
def test_every_job_does_all_its_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    types = [DeviceType("t", int(rng.integers(1, 4))), DeviceType("u", int(rng.integers(1, 3)))]
    jobs = [
        ClusterJob(
            f"j{n}",
            int(rng.integers(20, 200)),
            {"t": 1.0, "u": 2.0},
            arrival_s=5.0 * n,
            kind="ab"[n % 2],
        )
        for n in range(12)
    ]
    result = run_cluster(jobs, types, PackedSlices(), RoundOptions(7.0, 14.0), make_pairs(0.7))
    assert np.isfinite(result.finish_s).all()
    steps = np.array([job.steps for job in jobs])
    assert (result.received_s @ [1.0, 2.0] >= steps * (1 - 1e-9)).all()
    counts = np.array([each.count for each in types])
    assert (result.device_s <= counts * result.makespan_s + 1e-6).all()
