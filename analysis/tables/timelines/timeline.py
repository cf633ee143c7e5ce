"""A run as barriers and the work between them, the form in which it can be replayed.

E barriers (collectives and evaluation pauses) in time order, S steps, W ranks, P phases
(`Phase.code`). What is known per barrier and rank is worked out rank by rank where all of it would
take much memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.timelines.phase_times import PHASES, PhaseTimes

ROWS_AT_ONCE = 1 << 16
"""Barriers that are worked on together: what is in between does not take memory for all of a long
run."""


@dataclass(frozen=True)
class Timeline:
    """What happened, in virtual seconds since the first-step barrier.

    Attributes:
        steps: step numbers, [S].
        warm_up: steps that no reference may use, [S].
        samples: samples per step and rank, [S, W].
        barrier_step: index of each barrier's step, [E].
        group: collective instance within the step; -1 for an evaluation pause, [E].
        member: who is part of each barrier: all, or those of one tier, [E, W].
        arrival: own arrival at each barrier, [E, W]; of a rank that is no part of it, the end of
            its last one before.
        finish: leaving it, [E, W].
        work: what ranks did between barriers (what is missing there is unrecorded time).
        end: end of each rank's last span, [W].
    """

    steps: IntArray
    warm_up: BoolArray
    samples: IntArray
    barrier_step: IntArray
    group: IntArray
    member: BoolArray
    arrival: FloatArray
    finish: FloatArray
    work: PhaseTimes
    end: FloatArray

    @property
    def pause(self) -> BoolArray:
        """Which barriers are evaluation pauses, [E]."""
        return self.group < 0

    @property
    def counted(self) -> BoolArray:
        """Which steps of which rank references may use, [S, W]: all but warm-up."""
        counted: BoolArray = np.broadcast_to(~self.warm_up[:, None], self.samples.shape)
        return counted

    def of_rank(self, rank: int) -> FloatArray:
        """Seconds of a rank's local work by phase, [S, P]."""
        return self.work.of_rank(rank)

    @property
    def local(self) -> FloatArray:
        """Work (and what is not recorded) before each barrier, and after the last, [E + 1, W]."""
        local = np.empty((len(self.group) + 1, len(self.end)))
        local[:-1], local[-1] = self.arrival, self.end
        local[1:] -= self.finish
        return local

    @cached_property
    def latest(self) -> FloatArray:
        """Latest arrival at each barrier, [E]."""
        return find_latest_arrival(self.arrival, self.member)

    @cached_property
    def outside(self) -> FloatArray:
        """Seconds of each barrier that are outside the clock: from the last arrival to the first
        resume, [E].
        """
        first_resume: FloatArray = (
            self.finish.min(axis=1) if self.finish.size else np.zeros(len(self.group))
        )
        return np.where(self.pause, np.maximum(first_resume - self.latest, 0.0), 0.0)

    @property
    def makespan(self) -> float:
        """First-step barrier to the end, without what is outside the clock."""
        return float(self.end.max() - self.outside.sum())

    @cached_property
    def depends(self) -> BoolArray:
        """Whether a rank stayed at a barrier until the last had arrived (the root of a broadcast
        may not), [E, W].
        """
        depends: BoolArray = self.finish >= self.latest[:, None]
        depends &= self.member
        return depends

    @property
    def wait(self) -> FloatArray:
        """Waiting for the last to arrive, per barrier and rank, [E, W]."""
        return np.where(
            self.member, np.minimum(self.finish, self.latest[:, None]) - self.arrival, 0.0
        )

    @property
    def transfer(self) -> FloatArray:
        """Time at a barrier once all had arrived; for a pause, how much later than the first a rank
        resumed, [E, W].
        """
        return self.transfer_at(np.s_[:])

    def transfer_at(self, barriers: slice) -> FloatArray:
        """The same of some barriers."""
        after = self.finish[barriers] - self.latest[barriers, None]
        np.maximum(after, 0.0, out=after)
        after -= self.outside[barriers, None]
        after[~self.member[barriers]] = 0.0
        return after

    def wait_of(self, rank: int) -> FloatArray:
        """A rank's waiting at each barrier, [E]."""
        waited = np.minimum(self.finish[:, rank], self.latest) - self.arrival[:, rank]
        return np.where(self.member[:, rank], waited, 0.0)

    def transfer_of(self, rank: int) -> FloatArray:
        """A rank's time at each barrier once all had arrived, [E]."""
        after = np.maximum(self.finish[:, rank] - self.latest, 0.0) - self.outside
        return np.where(self.member[:, rank], after, 0.0)

    @property
    def step_wait(self) -> FloatArray:
        """Waiting for the last to arrive at the collectives of each step, [S, W]."""
        return np.stack(
            [self.of_collectives(self.wait_of(rank)) for rank in range(len(self.end))], axis=1
        )

    @property
    def step_transfer(self) -> FloatArray:
        """Exposed transfer of the collectives of each step, [S, W]."""
        return np.stack(
            [self.of_collectives(self.transfer_of(rank)) for rank in range(len(self.end))], axis=1
        )

    def of_collectives(self, values: FloatArray) -> FloatArray:
        """Sums values per barrier, [E], over the collectives of each step, [S]."""
        counted = np.where(self.pause, 0.0, values)
        return np.bincount(self.barrier_step, weights=counted, minlength=len(self.steps)).astype(
            np.float64
        )

    def work_before_barriers(
        self, rank: int, share: FloatArray, codes: Sequence[int] = range(PHASES)
    ) -> FloatArray:
        """A share of a rank's recorded work before each barrier, and after the last, [E + 1].

        Args:
            rank: whose.
            share: of each step's phases, [S, codes].
            codes: which phases.
        """
        own = np.flatnonzero(self.member[:, rank])
        first = np.searchsorted(self.barrier_step[own], np.arange(len(self.steps)))
        seconds = np.zeros(len(self.group) + 1)
        seconds[np.append(own, len(self.group))] = self.work.sum_by_place(
            rank, codes, share, first, len(own) + 1
        )
        return seconds


def find_latest_arrival(arrival: FloatArray, member: BoolArray) -> FloatArray:
    """Latest arrival of the members of each barrier, [E], of arrivals [E, W]."""
    if not arrival.size:
        return np.zeros(len(arrival))
    latest: FloatArray = (
        arrival.max(axis=1) if member.all() else np.where(member, arrival, -np.inf).max(axis=1)
    )
    return latest
