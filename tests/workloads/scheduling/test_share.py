"""Policy `share`: whole devices by how jobs scale, and jobs that share one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.cost_model.arrays import IntArray
from laggard.workloads.scheduling.cluster_jobs import (
    ClusterJob,
    ClusterState,
    DeviceType,
    PairSpeeds,
)
from laggard.workloads.scheduling.cluster_run import RoundOptions, run_cluster
from laggard.workloads.scheduling.fifo import Fifo
from laggard.workloads.scheduling.policy import DeviceGrants, SharingPolicy
from laggard.workloads.scheduling.registry import POLICIES
from laggard.workloads.scheduling.rounds import NOWHERE
from laggard.workloads.scheduling.share import SharedDevices


def draw_jobs(rng: np.random.Generator, count: int, types: list[DeviceType]) -> list[ClusterJob]:
    jobs = []
    for number in range(count):
        power, base = rng.uniform(0.3, 1.1), rng.uniform(0.5, 2, len(types))
        scale = int(rng.choice([1, 1, 2]))
        curves = {
            each.name: {n: float(speed * n**power) for n in (1, 2, 4)}
            for each, speed in zip(types, base, strict=True)
        }
        jobs.append(
            ClusterJob(
                f"j{number}",
                int(rng.integers(50, 500)),
                {name: curve[scale] for name, curve in curves.items()},
                scale,
                float(number * rng.uniform(0, 5)) if number else 0.0,
                curves=curves,
                kind="ab"[number % 2],
            )
        )
    return sorted(jobs, key=lambda job: job.arrival_s)


TYPES = [DeviceType("fast", 3), DeviceType("slow", 5)]
PAIRS: PairSpeeds = {("a", "b"): {"fast": (0.9, 0.8), "slow": (0.6, 0.7)}}


def find_kinds(grants: DeviceGrants) -> IntArray:
    """Return the type on which each job always runs, or `NOWHERE`."""
    assert set(grants.allocation.ravel()) <= {0.0, 1.0}
    assert (grants.allocation.sum(axis=1) <= 1).all()
    return np.where(grants.allocation.any(axis=1), grants.allocation.argmax(axis=1), NOWHERE)


def require_sound(grants: DeviceGrants, state: ClusterState) -> None:
    """No device is given twice, and partners agree."""
    kinds = find_kinds(grants)
    for kind, count in enumerate(state.counts):
        assert grants.devices[kinds == kind].sum() <= count
    shared = np.flatnonzero(grants.partner != NOWHERE)
    assert (grants.partner[grants.partner[shared]] == shared).all()
    assert (kinds[grants.partner[shared]] == kinds[shared]).all()
    for job in shared:
        assert sorted(grants.devices[[job, grants.partner[job]]]) == [0, 1]
    assert ((grants.speed > 0) == (grants.allocation > 0)).all()


@given(count=st.integers(1, 12), seed=st.integers(0, 10_000), shared=st.booleans())
def test_no_device_is_given_twice(count: int, seed: int, shared: bool) -> None:
    jobs = draw_jobs(np.random.default_rng(seed), count, TYPES)
    state = ClusterState.at_start(jobs, TYPES, PAIRS if shared else None)
    grants = SharedDevices().grant(state)
    require_sound(grants, state)
    assert shared or (grants.partner == NOWHERE).all()
    assert grants.allocation.any()


@given(count=st.integers(2, 12), seed=st.integers(0, 10_000))
def test_sharing_is_never_worth_less_than_not_sharing(count: int, seed: int) -> None:
    jobs = draw_jobs(np.random.default_rng(seed), count, TYPES)

    def worth(pairs: PairSpeeds) -> float:
        state = ClusterState.at_start(jobs, TYPES, pairs)
        speed = SharedDevices().grant(state).speed.sum(axis=1)
        return float((speed / state.throughput.max(axis=1)).sum())

    assert worth(PAIRS) >= worth({}) - 1e-9


def test_devices_go_to_who_gains_most_from_them() -> None:
    linear = {"t": {n: float(n) for n in (1, 2, 3, 4)}}
    flat = {"t": dict.fromkeys((1, 2, 3, 4), 1.0)}
    types = [DeviceType("t", 4)]
    jobs = [
        ClusterJob("flat", 100, {"t": 1.0}, curves=flat),
        ClusterJob("linear", 100, {"t": 1.0}, curves=linear),
    ]
    grants = SharedDevices().grant(ClusterState.at_start(jobs, types))
    assert grants.devices.tolist() == [1, 3]
    assert grants.speed.ravel().tolist() == [1.0, 3.0]


@pytest.mark.parametrize("seed", range(20))
def test_every_job_does_all_its_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = draw_jobs(rng, int(rng.integers(3, 15)), TYPES)
    result = run_cluster(jobs, TYPES, SharedDevices(), RoundOptions(10.0, 20.0), PAIRS)
    assert np.isfinite(result.finish_s).all()
    assert (result.finish_s > result.arrival_s).all()
    # Nobody is faster than on the most devices that the cluster has.
    fastest = [max(speed for c in job.curves.values() for speed in c.values()) for job in jobs]
    steps = np.array([job.steps for job in jobs])
    assert (result.received_s.sum(axis=1) >= steps / fastest * (1 - 1e-9)).all()
    counts = np.array([each.count for each in TYPES])
    assert (result.device_s <= counts * result.makespan_s + 1e-6).all()


def test_who_loses_a_partner_has_the_device_alone() -> None:
    types = [DeviceType("t", 1)]
    jobs = [ClusterJob("short", 10, {"t": 1.0}), ClusterJob("long", 100, {"t": 1.0})]
    pairs: PairSpeeds = {("short", "long"): {"t": (0.8, 0.8)}}
    result = run_cluster(jobs, types, SharedDevices(), RoundOptions(5.0, 1e6), pairs)
    # `short` ends at 12.5 s, in the third round; `long` has 8 of each 10 steps until its end, at
    # 15 s, and all of them from then on: 12 steps, of 100, are done by then.
    assert result.finish_s[0] == pytest.approx(12.5, abs=0.1)
    assert result.finish_s[1] == pytest.approx(15 + 100 - 12, abs=2.0)
    assert result.device_s[0] == pytest.approx(result.finish_s[1], rel=0.05)


def test_it_is_a_policy_that_shares() -> None:
    sharing = [name for name, policy in POLICIES.items() if isinstance(policy, SharingPolicy)]
    assert sharing == ["share", "gandiva"]
    state = ClusterState.at_start(draw_jobs(np.random.default_rng(1), 4, TYPES), TYPES)
    assert ((SharedDevices().allocate(state) > 0).sum(axis=1) <= 1).all()
    assert not isinstance(Fifo(), SharingPolicy)
