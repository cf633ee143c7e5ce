"""First in, first out: jobs run in the order of their arrivals, each until its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.workloads.scheduling.cluster_jobs import ClusterState


@dataclass(frozen=True)
class Fifo:
    """Give jobs whole devices in the order of their arrivals; nobody overtakes the first one.

    A job takes the free type on which it is fastest.
    """

    name: str = "fifo"
    aware: bool = True
    in_turn: bool = True

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return ones for the jobs that run."""
        allocation, free = np.zeros_like(state.throughput), state.counts.copy()
        for job in np.flatnonzero(state.running >= 0):
            allocation[job, state.running[job]] = 1.0
            free[state.running[job]] -= state.scale[job]
        for job in np.flatnonzero(state.running < 0):
            fits = (free >= state.scale[job]) & (state.throughput[job] > 0)
            if not fits.any():
                break
            speeds = np.where(fits, state.throughput[job], -1.0)
            kind = int(np.argmax(speeds))
            allocation[job, kind] = 1.0
            free[kind] -= state.scale[job]
        return allocation
