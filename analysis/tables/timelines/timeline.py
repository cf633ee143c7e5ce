"""Timeline of a lockstep run: barriers and the work between them, the form for replays.

E barriers (collectives and evaluation pauses) are in time order; S steps, W ranks, P phases
(`Phase.code`). Methods that return values per barrier for one rank exist because arrays of all
ranks may take much memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.timelines.phase_times import PHASES, PhaseTimes

ROWS_AT_ONCE = 1 << 16
"""Number of barriers that are processed at once, so that temporary arrays of a long run stay
small."""
_MIN_UNRECORDED_S = 1e-6


@dataclass(frozen=True)
class Timeline:
    """Events of a run, in virtual seconds since the first-step barrier.

    Attributes:
        steps: step numbers, [S].
        warm_up: mask of steps that no reference may use, [S].
        samples: samples per step and rank, [S, W].
        barrier_step: index of each barrier's step, [E].
        group: number of the collective within the step, [E]; -1 for an evaluation pause.
        member: mask of the ranks that take part in each barrier: all, or those of one tier, [E,
            W].
        arrival: each rank's arrival at each barrier, [E, W]; for a rank that is no member, the end
            of its last barrier before.
        finish: time at which each rank leaves each barrier, [E, W].
        posted: index of the post that each barrier waits for besides its members, or -1, [E]. A
            post is a barrier of one rank, such as the sender of a message.
        work: recorded work of the ranks between barriers; the rest is unrecorded time.
        end: end of each rank's last span, [W].
        teams: ranks that do the same work; each rank is in one team.
    """

    steps: IntArray
    warm_up: BoolArray
    samples: IntArray
    barrier_step: IntArray
    group: IntArray
    member: BoolArray
    arrival: FloatArray
    finish: FloatArray
    posted: IntArray
    work: PhaseTimes
    end: FloatArray
    teams: tuple[tuple[int, ...], ...]

    @property
    def pause(self) -> BoolArray:
        """Return a mask of the barriers that are evaluation pauses, [E]."""
        return self.group < 0

    @property
    def counted(self) -> BoolArray:
        """Return a mask of the steps that references may use, all but warm-up, [S, W]."""
        counted: BoolArray = np.broadcast_to(~self.warm_up[:, None], self.samples.shape)
        return counted

    def of_rank(self, rank: int) -> FloatArray:
        """Return the seconds of a rank's local work by phase, [S, P]."""
        return self.work.of_rank(rank)

    @property
    def local(self) -> FloatArray:
        """Return the time before each barrier, and after the last, [E + 1, W].

        It includes work and unrecorded time since the previous barrier.
        """
        # Row e is the arrival at barrier e minus the end of barrier e - 1.
        local = np.empty((len(self.group) + 1, len(self.end)))
        local[:-1], local[-1] = self.arrival, self.end
        local[1:] -= self.finish
        return local

    def local_of(self, rank: int) -> FloatArray:
        """Return a rank's time before each barrier, and after the last, [E + 1]."""
        local = np.append(self.arrival[:, rank], self.end[rank])
        local[1:] -= self.finish[:, rank]
        return local

    @property
    def interval_step(self) -> IntArray:
        """Return the index of the step that each interval between barriers counts to, [E + 1].

        An interval counts to the step of the barrier that ends it; the last one to the last step.
        """
        return np.append(self.barrier_step, len(self.steps) - 1)

    def unrecorded_before_barriers(self, rank: int) -> FloatArray:
        """Return a rank's time before each barrier, and after the last, without any span, [E + 1].

        Times of spans are kept in single precision, so shorter remainders than a microsecond are
        zero.
        """
        recorded = self.work_before_barriers(rank, np.ones((len(self.steps), PHASES)))
        rest = self.local_of(rank) - recorded
        rest[rest < _MIN_UNRECORDED_S] = 0.0
        return rest

    @cached_property
    def latest(self) -> FloatArray:
        """Return the latest arrival at each barrier, or the post that it waits for, [E]."""
        return find_latest_arrival(self.arrival, self.member, self.posted)

    @cached_property
    def outside(self) -> FloatArray:
        """Return the seconds of each barrier that are outside the clock, [E].

        A pause is outside the clock from the last arrival to the first resumption.
        """
        first_resume: FloatArray = (
            self.finish.min(axis=1) if self.finish.size else np.zeros(len(self.group))
        )
        return np.where(self.pause, np.maximum(first_resume - self.latest, 0.0), 0.0)

    @property
    def makespan(self) -> float:
        """Return the seconds from the first-step barrier to the end, inside the clock."""
        return float(self.end.max() - self.outside.sum())

    @cached_property
    def depends(self) -> BoolArray:
        """Return whether a rank stayed at a barrier until the last one arrived, [E, W].

        The root of a broadcast may leave earlier.
        """
        depends: BoolArray = self.finish >= self.latest[:, None]
        depends &= self.member
        return depends

    @property
    def wait(self) -> FloatArray:
        """Return the time waiting for the last arrival, per barrier and rank, [E, W]."""
        return np.where(
            self.member, np.minimum(self.finish, self.latest[:, None]) - self.arrival, 0.0
        )

    @property
    def transfer(self) -> FloatArray:
        """Return the time at a barrier after the last arrival, [E, W].

        For a pause, it is how much later than the first one a rank resumed.
        """
        return self.transfer_at(np.s_[:])

    def transfer_at(self, barriers: slice) -> FloatArray:
        """Return `transfer` of some barriers only."""
        # In place, because arrays of all barriers and ranks are large.
        after = self.finish[barriers] - self.latest[barriers, None]
        np.maximum(after, 0.0, out=after)
        after -= self.outside[barriers, None]
        after[~self.member[barriers]] = 0.0
        return after

    def wait_of(self, rank: int) -> FloatArray:
        """Return a rank's waiting time at each barrier, [E]."""
        waited = np.minimum(self.finish[:, rank], self.latest) - self.arrival[:, rank]
        return np.where(self.member[:, rank], waited, 0.0)

    def transfer_of(self, rank: int) -> FloatArray:
        """Return a rank's time at each barrier after the last arrival, [E]."""
        after = np.maximum(self.finish[:, rank] - self.latest, 0.0) - self.outside
        return np.where(self.member[:, rank], after, 0.0)

    @property
    def step_wait(self) -> FloatArray:
        """Return the time waiting for the last arrival at the collectives of each step, [S, W]."""
        return np.stack(
            [self.of_collectives(self.wait_of(rank)) for rank in range(len(self.end))], axis=1
        )

    @property
    def step_transfer(self) -> FloatArray:
        """Return the exposed transfer of the collectives of each step, [S, W]."""
        return np.stack(
            [self.of_collectives(self.transfer_of(rank)) for rank in range(len(self.end))], axis=1
        )

    def of_collectives(self, values: FloatArray) -> FloatArray:
        """Sum values per barrier, [E], over the collectives of each step, [S]."""
        counted = np.where(self.pause, 0.0, values)
        return np.bincount(self.barrier_step, weights=counted, minlength=len(self.steps)).astype(
            np.float64
        )

    def team_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that do the same work as a rank, with the rank itself."""
        return next(team for team in self.teams if rank in team)

    def match_team_barriers(self, rank: int) -> IntArray | None:
        """Return the barriers at which the team of a rank is as far as the rank, [N, team].

        These are those of each rank itself, in their order, and after them the end of the run. It
        is None if the ranks do not have the same number of barriers in each step.
        """
        rows = [np.flatnonzero(self.member[:, mate]) for mate in self.team_of(rank)]
        steps = [self.barrier_step[own] for own in rows]
        if any(not np.array_equal(each, steps[0]) for each in steps):
            return None
        end = len(self.group)
        return np.stack([np.append(own, end) for own in rows], axis=1)

    def work_before_barriers(
        self, rank: int, share: FloatArray, codes: Sequence[int] = range(PHASES)
    ) -> FloatArray:
        """Return shares of a rank's recorded work before each barrier, and after the last.

        Args:
            rank: number of the rank.
            share: share of each step's phases that counts, [S, codes].
            codes: codes of the phases.

        Returns:
            Seconds, [E + 1].
        """
        own = np.flatnonzero(self.member[:, rank])
        first = np.searchsorted(self.barrier_step[own], np.arange(len(self.steps)))
        seconds = np.zeros(len(self.group) + 1)
        seconds[np.append(own, len(self.group))] = self.work.sum_by_place(
            rank, codes, share, first, len(own) + 1
        )
        return seconds


def find_latest_arrival(arrival: FloatArray, member: BoolArray, posted: IntArray) -> FloatArray:
    """Return the latest arrival of the members of each barrier, or the post it waits for, [E].

    Args:
        arrival: arrivals of all ranks, [E, W].
        member: mask of the members, [E, W].
        posted: index of the post that each barrier waits for, or -1, [E].
    """
    if not arrival.size:
        return np.zeros(len(arrival))
    latest: FloatArray = (
        arrival.max(axis=1) if member.all() else np.where(member, arrival, -np.inf).max(axis=1)
    )
    waiting = np.flatnonzero(posted >= 0)
    latest[waiting] = np.maximum(latest[waiting], latest[posted[waiting]])
    return latest
