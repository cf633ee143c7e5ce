"""Time slices for all jobs, and two jobs on one device where there are not enough (Gandiva).

W. Xiao et al., *Gandiva: introspective cluster scheduling for deep learning*, OSDI 2018. Gandiva
tries pairs at random and keeps those that together are faster than one by itself. Here the speeds
of pairs are given, so those are tried first that gain most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.workloads.scheduling.cluster_jobs import ClusterState
from laggard.workloads.scheduling.device_sharing import Pair
from laggard.workloads.scheduling.fair_policies import LeastAttainedService
from laggard.workloads.scheduling.policy import DeviceGrants
from laggard.workloads.scheduling.rounds import NOWHERE


@dataclass(frozen=True)
class PackedSlices:
    """Give every job the same time on devices, and pack pairs until all jobs have a device.

    A pair shares a device if both together are worth more there than one job: each its speed,
    relative to that alone, on the mean of all devices.
    """

    name: str = "gandiva"
    aware: bool = False
    in_turn: bool = False

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return the time of each job on each type."""
        return self.grant(state).allocation

    def grant(self, state: ClusterState) -> DeviceGrants:
        """Return the time of each job, and the pairs."""
        speed, devices = state.throughput.copy(), state.scale.copy()
        partner = np.full(len(state.jobs), NOWHERE)
        missing = int(state.scale.sum() - state.counts.sum())
        for first, other in _choose_pairs(state, missing):
            partner[[first, other]] = other, first
            devices[other] = 0
            for kind in range(len(state.types)):
                speed[[first, other], kind] = _get_speeds(state, (first, other), kind)
        # Each pair takes the time of one job.
        units = np.flatnonzero(devices > 0)
        merged = replace(
            state,
            jobs=tuple(state.jobs[each] for each in units),
            scale=state.scale[units],
            priority=state.priority[units],
        )
        allocation = np.zeros_like(speed)
        allocation[units] = LeastAttainedService().allocate(merged)
        second = np.flatnonzero(devices == 0)
        allocation[second] = allocation[partner[second]]
        return DeviceGrants(allocation, devices, partner, speed, state.throughput)


def _choose_pairs(state: ClusterState, missing: int) -> list[Pair]:
    """Return at most `missing` pairs, those first that are worth most; each saves a device."""
    if missing <= 0 or not state.pairs:
        return []
    small = np.flatnonzero(state.scale == 1).tolist()
    worth = {pair: _compute_worth(state, pair) for pair in combinations(small, 2)}
    chosen: list[Pair] = []
    taken: set[int] = set()
    for pair in sorted(worth, key=lambda each: (-worth[each], each)):
        if worth[pair] <= 1.0 or len(chosen) == missing:
            break
        if not taken & {*pair}:
            chosen.append(pair)
            taken |= {*pair}
    return chosen


def _compute_worth(state: ClusterState, pair: Pair) -> float:
    """Return the sum of the relative speeds of a pair, on the mean of all devices."""
    together = np.array([_get_speeds(state, pair, kind) for kind in range(len(state.types))])
    alone = state.throughput[[*pair]].T
    relative = np.divide(together, alone, out=np.zeros_like(together), where=alone > 0)
    return float((relative.sum(axis=1) * state.counts).sum() / state.counts.sum())


def _get_speeds(state: ClusterState, pair: Pair, kind: int) -> tuple[float, float]:
    """Return the speeds of a pair on a type; zeros where it was not measured."""
    return state.find_pair(*pair, kind) or (0.0, 0.0)
