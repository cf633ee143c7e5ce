"""Durations of one family of work per rank and step, beside those that are expected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from laggard.analysis.detection.families import FamilySpec
from laggard.analysis.detection.reference import COMPUTE_CODES, References, find_fastest_ranks
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.analysis.tables.timelines.timeline import Timeline


class FamilyWork(Protocol):
    """Work of one family in a run: S steps, W ranks."""

    @property
    def timeline(self) -> Timeline:
        """Return the timeline of the run."""
        ...

    @property
    def family(self) -> FamilySpec:
        """Return the family."""
        ...

    def taken_of(self, rank: int) -> FloatArray:
        """Return the seconds that the family alone takes in each step of a rank, [S]."""
        ...

    def seconds_of(self, rank: int) -> FloatArray:
        """Return the seconds of each step of a rank that are compared, [S]."""
        ...

    def own_of(self, rank: int) -> FloatArray:
        """Return the usual duration of the rank itself, [S]."""
        ...

    def fleet_of(self, rank: int) -> FloatArray:
        """Return the usual duration of the fastest ranks, [S]."""
        ...


def measure_family_work(
    timeline: Timeline, references: References, family: FamilySpec
) -> FamilyWork:
    """Return the work of a family of local work."""
    if family.counts_unrecorded:
        return StalledWork(timeline, references, family)
    return RecordedWork(timeline, references, family)


@dataclass(frozen=True)
class RecordedWork:
    """Work of a family that has only phases."""

    timeline: Timeline
    references: References
    family: FamilySpec

    def seconds_of(self, rank: int) -> FloatArray:
        """Return the seconds of the family in each step of a rank, [S]."""
        seconds = self.timeline.work.of_rank(rank, self.family.codes).sum(axis=1)
        return np.asarray(seconds, dtype=np.float64)

    taken_of = seconds_of

    def own_of(self, rank: int) -> FloatArray:
        """Return the usual duration of the rank itself, [S]."""
        return self.references.own.total(rank, self.family.codes)

    def fleet_of(self, rank: int) -> FloatArray:
        """Return the usual duration of the fastest ranks, [S]."""
        return self.references.fleet.total(rank, self.family.codes)


@dataclass(frozen=True)
class StalledWork:
    """Work of a family with unrecorded time, which makes a rank stall.

    The compared durations include the usual duration of a step's other work, once. A healthy rank
    has almost no unrecorded time, so a ratio to that alone would be meaningless.
    """

    timeline: Timeline
    references: References
    family: FamilySpec

    def seconds_of(self, rank: int) -> FloatArray:
        """Return the seconds of each step of a rank, with the usual other work, [S]."""
        return np.asarray(self._usual_step_s[rank] + self._stalled_s[rank])

    def own_of(self, rank: int) -> FloatArray:
        """Return the usual duration of the rank itself, [S]."""
        own = self._usual_step_s[rank] + self._usual_stalled_s[rank]
        return np.full(len(self.timeline.steps), own)

    def fleet_of(self, rank: int) -> FloatArray:
        """Return the usual duration of the fastest ranks, [S]."""
        usual = self._usual_step_s[rank] + self.fleet_stalled_s(rank)
        return np.full(len(self.timeline.steps), usual)

    def usual_step_s(self, rank: int) -> float:
        """Return the usual seconds of a step's recorded local work of a rank."""
        return float(self._usual_step_s[rank])

    def taken_of(self, rank: int) -> FloatArray:
        """Return the unrecorded seconds, and those of the family's phases, of each step, [S].

        Those after the last barrier are part of the last step. They are not part of `seconds_of`,
        since no other step has so many.
        """
        stalled: FloatArray = self._stalled_s[rank].copy()
        stalled[-1] += self.timeline.unrecorded_before_barriers(rank)[-1]
        return stalled

    def fleet_stalled_s(self, rank: int) -> float:
        """Return the seconds per step that the fastest ranks would stall on a rank's processor.

        Bookkeeping between phases takes as much longer as computing does.
        """
        return self._fastest_stalled_s[rank] * self._processor_ratio(rank)

    def _processor_ratio(self, rank: int) -> float:
        own = float(np.median(self.references.own.total(rank, COMPUTE_CODES)))
        fastest = float(np.median(self.references.fleet.total(rank, COMPUTE_CODES)))
        return max(own / fastest, 1.0) if fastest > 0 else 1.0

    @cached_property
    def _fastest_stalled_s(self) -> dict[int, float]:
        """Usual stall of the fastest ranks that do the same work as each rank."""
        seconds: dict[int, float] = {}
        for team in self.timeline.teams:
            leaders = find_fastest_ranks(self._usual_step_s + self._usual_stalled_s, team)
            stalled_s = float(np.median(self._usual_stalled_s[leaders]))
            seconds |= dict.fromkeys(team, stalled_s)
        return seconds

    @cached_property
    def _stalled_s(self) -> FloatArray:
        """Unrecorded seconds, and those of the family's phases, of each rank and step, [W, S]."""
        timeline = self.timeline
        count = len(timeline.steps)
        stalled = np.empty((len(timeline.end), count))
        for rank in range(len(timeline.end)):
            unrecorded = timeline.unrecorded_before_barriers(rank)[:-1]
            stalled[rank] = np.bincount(
                timeline.barrier_step, unrecorded, count
            ) + timeline.work.of_rank(rank, self.family.codes).sum(axis=1)
        return stalled

    @cached_property
    def _usual_stalled_s(self) -> FloatArray:
        usual: FloatArray = np.median(self._stalled_s[:, self._usable], axis=1)
        return usual

    @property
    def _usable(self) -> BoolArray:
        """Mask of the steps outside warm-up; all, if there are no others, [S]."""
        usable: BoolArray = ~self.timeline.warm_up
        return usable if usable.any() else np.ones_like(usable)

    @cached_property
    def _usual_step_s(self) -> FloatArray:
        """Usual seconds of the steps' recorded work outside the family, [W]."""
        codes = [code for code in self.timeline.work.seconds if code not in self.family.codes]
        usable = self._usable
        return np.array(
            [
                np.median(self.timeline.work.of_rank(rank, codes)[usable].sum(axis=1))
                for rank in range(len(self.timeline.end))
            ]
        )
