"""Numbers of devices by how jobs scale, and pairs of jobs that share one (MARBLE)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray, IntArray
from laggard.workloads.scheduling.cluster_jobs import ClusterState
from laggard.workloads.scheduling.device_sharing import Pair, build_values, share_devices
from laggard.workloads.scheduling.policy import DeviceGrants
from laggard.workloads.scheduling.rounds import NOWHERE

Together = dict[Pair, tuple[float, float]]


@dataclass(frozen=True)
class SharedDevices:
    """Maximize the sum of the jobs' speeds, relative to what each would have by itself.

    A job's speed counts relative to the devices that it asks for, of its fastest type. Jobs are
    divided between the types first: again and again the job and the devices that bring most for
    each device. Then the devices of each type are divided (`device_sharing.py`), also between jobs
    that found none before.
    """

    name: str = "share"
    aware: bool = True
    in_turn: bool = True

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return ones for the jobs that run."""
        return self.grant(state).allocation

    def grant(self, state: ClusterState) -> DeviceGrants:
        """Return the devices of each job."""
        weight = state.priority / state.throughput.max(axis=1)
        speeds = _tabulate_speeds(state)
        values = speeds * weight[:, None, None]
        together = [_find_pairs(state, kind) for kind in range(len(state.types))]
        worth = [
            {pair: (a * weight[pair[0]], b * weight[pair[1]]) for pair, (a, b) in each.items()}
            for each in together
        ]
        chosen = _divide_between_types(values, state.counts)
        _add_partners(chosen, values, worth)
        devices, partner = state.scale.copy(), np.full(len(state.jobs), NOWHERE)
        allocation, speed, alone = (np.zeros_like(state.throughput) for _ in range(3))
        for kind, count in enumerate(state.counts.tolist()):
            jobs = np.flatnonzero(chosen == kind)
            place = {int(job): number for number, job in enumerate(jobs)}
            shares = share_devices(
                values[jobs, kind, : count + 1],
                {
                    (place[a], place[b]): both
                    for (a, b), both in worth[kind].items()
                    if a in place and b in place
                },
                count,
            )
            given = np.array(shares.devices, dtype=np.int64)
            running = jobs[given > 0]
            allocation[running, kind], devices[running] = 1.0, given[given > 0]
            speed[running, kind] = speeds[running, kind, devices[running]]
            for pair in shares.pairs:
                first, other = int(jobs[pair[0]]), int(jobs[pair[1]])
                partner[first], partner[other] = other, first
                devices[other] = 0
                alone[[first, other], kind] = speeds[[first, other], kind, 1]
                speed[[first, other], kind] = together[kind][first, other]
        return DeviceGrants(allocation, devices, partner, speed, alone)


def _tabulate_speeds(state: ClusterState) -> FloatArray:
    """Return the steps per second of each job on each type and number of devices, [J, M, N + 1]."""
    most = int(state.counts.max())
    speeds = np.zeros((len(state.jobs), len(state.types), most + 1))
    for number, job in enumerate(state.jobs):
        for kind, (name, count) in enumerate(zip(state.types, state.counts, strict=True)):
            speeds[number, kind, : count + 1] = build_values(job.get_curve(name), int(count))
    return speeds


def _find_pairs(state: ClusterState, kind: int) -> Together:
    """Return the speeds of all pairs of jobs that may share a device of a type."""
    found: Together = {}
    if not state.pairs:
        return found
    # A job that needs several devices keeps its own.
    small = [number for number, job in enumerate(state.jobs) if job.scale == 1]
    for place, first in enumerate(small):
        for other in small[place + 1 :]:
            both = state.find_pair(first, other, kind)
            if both is not None and min(both) > 0:
                found[first, other] = both
    return found


def _divide_between_types(values: FloatArray, counts: IntArray) -> IntArray:
    """Return a type for each job that finds devices, or `NOWHERE`, [J].

    The job and the devices of one type come first that are worth most for each device.
    """
    jobs, _, most = values.shape
    chosen, left = np.full(jobs, NOWHERE), counts.copy()
    numbers = np.arange(1, most)
    density = values[:, :, 1:] / numbers
    density[:, numbers[None, :] > left[:, None]] = 0.0
    for _ in range(jobs):
        job, kind, place = (int(each) for each in _find_largest(density))
        if density[job, kind, place] <= 0:
            break
        chosen[job] = kind
        left[kind] -= numbers[place]
        density[job] = 0.0
        density[:, kind, numbers > left[kind]] = 0.0
    return chosen


def _find_largest(density: FloatArray) -> tuple[np.intp, ...]:
    return np.unravel_index(int(np.argmax(density)), density.shape)


def _add_partners(chosen: IntArray, values: FloatArray, worth: list[Together]) -> None:
    """Give each job that found no devices the type on which sharing one brings most."""
    waiting = {int(job) for job in np.flatnonzero(chosen == NOWHERE)}
    best: dict[int, tuple[float, int]] = {}
    for kind, pairs in enumerate(worth):
        for job, other, both in _list_candidates(pairs, waiting):
            if chosen[other] == kind:
                gain = both - float(values[other, kind, 1])
                best[job] = max(best.get(job, (0.0, kind)), (gain, kind))
    for job, (_, kind) in best.items():
        chosen[job] = kind


def _list_candidates(pairs: Together, waiting: set[int]) -> Iterator[tuple[int, int, float]]:
    for (first, other), both in pairs.items():
        if first in waiting:
            yield first, other, sum(both)
        if other in waiting:
            yield other, first, sum(both)
