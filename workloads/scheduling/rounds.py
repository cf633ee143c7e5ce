"""Rounds: who runs on what until the next one, so that times come to follow an allocation.

The mechanism is Gavel's (D. Narayanan et al., OSDI 2020). In every round, a job's priority on a
type is its allocation there divided by the part of the type's time that it has received since the
allocation was made. Jobs take devices in the order of their priorities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray, IntArray

NOWHERE = -1
"""Type of a job that does not run."""

_FIRST = 1e9
"""Factor of the priority of a job that has received nothing."""


@dataclass
class ReceivedTime:
    """Seconds that jobs have received on each type since the allocation was made.

    Attributes:
        received_s: seconds of each job on each type, [J, M].
        deficit_s: seconds that each job should have received before that and has not, [J, M].
    """

    received_s: FloatArray
    deficit_s: FloatArray

    @classmethod
    def empty(cls, types: int) -> ReceivedTime:
        """Return the times of no jobs."""
        return cls(np.zeros((0, types)), np.zeros((0, types)))

    def add_jobs(self, count: int, round_s: float) -> None:
        """Add jobs that have just arrived; half a round each keeps the first parts finite."""
        types = self.received_s.shape[1]
        self.received_s = np.vstack([self.received_s, np.full((count, types), round_s / 2.0)])
        self.deficit_s = np.vstack([self.deficit_s, np.zeros((count, types))])

    def keep_jobs(self, kept: np.ndarray) -> None:
        """Keep some jobs, [J] of bool, and forget the others."""
        self.received_s, self.deficit_s = self.received_s[kept], self.deficit_s[kept]

    def restart(self, allocation: FloatArray, since_s: float, round_s: float) -> None:
        """Begin again after `since_s` seconds of an allocation, and keep what jobs are owed."""
        self.deficit_s = self.deficit_s + allocation * since_s - (self.received_s - round_s / 2.0)
        self.received_s = np.full_like(self.received_s, round_s / 2.0)

    def compute_priorities(self, allocation: FloatArray, used_s: FloatArray) -> FloatArray:
        """Return the priorities of all jobs on all types, [J, M].

        Args:
            allocation: part of the time that each job should run on each type, [J, M].
            used_s: seconds that each type has been given to jobs since the allocation was made,
                those included that have ended, [M].
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(used_s > 0, self.received_s / used_s, 0.0)
            priorities = np.where(part > 0, allocation / part, allocation * _FIRST)
        return np.where(allocation > 0, priorities, 0.0)


def choose_round(
    priorities: FloatArray,
    deficit_s: FloatArray,
    throughput: FloatArray,
    scale: IntArray,
    counts: IntArray,
    order: Sequence[int],
    *,
    fill: bool,
) -> IntArray:
    """Return the type on which each job runs in the next round, or `NOWHERE`, [J].

    Types take jobs one after another: each the one with the highest priority, then the largest
    deficit, then the earliest arrival, if enough devices are left. Then jobs that are left take
    devices that are left, each those on which it is fastest.

    Args:
        priorities: priorities; 0 for a job that has no part of a type, [J, M].
        deficit_s: seconds that jobs are owed, [J, M].
        throughput: steps per second; 0 where a job cannot run, [J, M].
        scale: devices of each job; 0 for one that uses those of another job, [J].
        counts: devices of each type, [M].
        order: order in which types take jobs.
        fill: whether jobs may take devices of which they have no part.
    """
    chosen = np.full(len(priorities), NOWHERE)
    left = counts.copy()
    for kind in order:
        able = (priorities[:, kind] > 0) & (throughput[:, kind] > 0) & (chosen == NOWHERE)
        candidates = np.flatnonzero(able)
        ranking = np.lexsort((-deficit_s[candidates, kind], -priorities[candidates, kind]))
        least = scale[candidates].min() if len(candidates) else 0
        for job in candidates[ranking]:
            if left[kind] < least:
                break
            if scale[job] <= left[kind]:
                chosen[job] = kind
                left[kind] -= scale[job]
    if fill:
        for job in np.flatnonzero(chosen == NOWHERE):
            if not left.any():
                break
            speeds = np.where(scale[job] <= left, throughput[job], 0.0)
            kind = int(np.argmax(speeds))
            if speeds[kind] > 0:
                chosen[job] = kind
                left[kind] -= scale[job]
    return chosen
