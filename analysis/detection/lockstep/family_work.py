"""Durations of one family of work per rank and step, beside those that are expected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laggard.analysis.detection.families import FamilySpec
from laggard.analysis.detection.reference import COMPUTE_CODES, References, find_fastest_ranks
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.analysis.tables.timelines.timeline import Timeline


@dataclass(frozen=True)
class FamilyWork:
    """Work of one family in a run: S steps, W ranks.

    The durations of a family with unrecorded time include the usual duration of a step's other
    work, once. A healthy rank has almost no unrecorded time, so a ratio to that alone would be
    meaningless.
    """

    timeline: Timeline
    references: References
    family: FamilySpec

    def seconds_of(self, rank: int) -> FloatArray:
        """Return the seconds of the family in each step of a rank, [S]."""
        if self.family.counts_unrecorded:
            return np.asarray(self._usual_step_s[rank] + self._stalled_s[rank])
        return np.asarray(
            self.timeline.work.of_rank(rank, self.family.codes).sum(axis=1), dtype=np.float64
        )

    def own_of(self, rank: int) -> FloatArray:
        """Return the usual duration of the rank itself, [S]."""
        if self.family.counts_unrecorded:
            own = self._usual_step_s[rank] + self._usual_stalled_s[rank]
            return np.full(len(self.timeline.steps), own)
        return self.references.own.total(rank, self.family.codes)

    def fleet_of(self, rank: int) -> FloatArray:
        """Return the usual duration of the fastest ranks, [S]."""
        if self.family.counts_unrecorded:
            usual = self._usual_step_s[rank] + self.fleet_stalled_s(rank)
            return np.full(len(self.timeline.steps), usual)
        return self.references.fleet.total(rank, self.family.codes)

    def usual_step_s(self, rank: int) -> float:
        """Return the usual seconds of a step's recorded local work of a rank."""
        return float(self._usual_step_s[rank])

    def stalled_of(self, rank: int) -> FloatArray:
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
        return self._fastest_stalled_s * self._processor_ratio(rank)

    def _processor_ratio(self, rank: int) -> float:
        own = float(np.median(self.references.own.total(rank, COMPUTE_CODES)))
        fastest = float(np.median(self.references.fleet.total(rank, COMPUTE_CODES)))
        return max(own / fastest, 1.0) if fastest > 0 else 1.0

    @cached_property
    def _fastest_stalled_s(self) -> float:
        everyone = list(range(len(self.timeline.end)))
        leaders = find_fastest_ranks(self._usual_step_s + self._usual_stalled_s, everyone)
        return float(np.median(self._usual_stalled_s[leaders]))

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
