"""Time that a removed cause saves before each barrier.

A step may have several barriers with work of one phase between them. What a slow rank saves there
is saved where it took longer than other ranks, and not evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.timelines.timeline import Timeline

_UNRECORDED = (-1,)
_MIN_EXCESS_SHARE = 0.5


@dataclass(frozen=True)
class SavedTime:
    """Calculator of saved time; it remembers what ranks usually do before each barrier."""

    timeline: Timeline
    _typical: dict[tuple[int, ...], FloatArray] = field(default_factory=dict)

    def of_work(self, rank: int, codes: Sequence[int], kept: FloatArray) -> FloatArray:
        """Return the seconds saved if spans of these phases keep a share of their time, [E + 1].

        Args:
            rank: number of the rank.
            codes: codes of the phases.
            kept: kept share of each step's phases, [S, codes]. It may be a sum of two shares minus
                a third. A share of 1 saves nothing, whatever terms it is composed of.
        """
        saved = self.timeline.work_before_barriers(rank, 1.0 - kept, codes)
        scattered = self.timeline.work.scattered
        if not (np.isin(scattered.phase, codes) & (scattered.rank == rank)).any():
            return saved

        def measure(each: int) -> FloatArray:
            return self.timeline.work_before_barriers(each, np.ones_like(kept), codes)

        typical = self._find_typical(rank, tuple(codes), measure)
        return self._move_to_excess(saved, measure(rank), typical)

    def of_unrecorded(self, rank: int, kept: FloatArray) -> FloatArray:
        """Return the seconds saved if a rank's unrecorded time keeps a share, [E + 1].

        Args:
            rank: number of the rank.
            kept: kept share of each step's unrecorded time, [S].
        """
        seconds = self.timeline.unrecorded_before_barriers(rank)
        saved = seconds * (1.0 - kept[self.timeline.interval_step])
        typical = self._find_typical(rank, _UNRECORDED, self.timeline.unrecorded_before_barriers)
        return self._move_to_excess(saved, seconds, typical)

    def _find_typical(
        self, rank: int, codes: tuple[int, ...], measure: Callable[[int], FloatArray]
    ) -> FloatArray:
        """Return the lower quartile of the members' seconds before each barrier, [E + 1].

        More than half of the ranks may be slow there. In a pipeline, the members of a barrier do
        different work, so the ranks of the same stage are compared at their own barriers.
        """
        if len(self.timeline.teams) > 1:
            return self._find_typical_of_team(rank, measure)
        if codes not in self._typical:
            timeline = self.timeline
            world = len(timeline.end)
            seconds = np.stack([measure(each) for each in range(world)], axis=1)
            everyone = np.ones((1, world), dtype=np.bool_)
            seconds[~np.vstack([timeline.member, everyone])] = np.nan
            ordered = np.sort(seconds, axis=1)  # absent ranks come last
            counts = np.maximum(world - np.isnan(ordered).sum(axis=1), 1)
            quarter = (counts - 1) // 4
            self._typical[codes] = np.nan_to_num(ordered[np.arange(len(ordered)), quarter])
        return self._typical[codes]

    def _find_typical_of_team(self, rank: int, measure: Callable[[int], FloatArray]) -> FloatArray:
        own, team = measure(rank), self.timeline.team_of(rank)
        rows = self.timeline.match_team_barriers(rank)
        if rows is None:
            return own
        seconds = [measure(mate)[rows[:, place]] for place, mate in enumerate(team)]
        typical = np.zeros_like(own)
        typical[rows[:, team.index(rank)]] = find_lower_quartile(np.stack(seconds, axis=1))
        return typical

    def _move_to_excess(
        self, saved: FloatArray, seconds: FloatArray, typical: FloatArray
    ) -> FloatArray:
        """Move what each step saves to where the rank took longer than the typical rank.

        It stays where it is unless the rank took longer for about the saved time.
        """
        step, count = self.timeline.interval_step, len(self.timeline.steps)
        excess = np.maximum(seconds - typical, 0.0)
        excess_by_step = np.bincount(step, excess, count)[step]
        saved_by_step = np.bincount(step, saved, count)[step]
        known = excess_by_step > _MIN_EXCESS_SHARE * np.abs(saved_by_step)
        known &= excess_by_step > 0
        share = excess / np.where(known, excess_by_step, 1.0)
        return np.clip(np.where(known, saved_by_step * share, saved), -seconds, seconds)


def find_lower_quartile(seconds: FloatArray) -> FloatArray:
    """Return the lower quartile of the ranks' seconds before each barrier, [N].

    Args:
        seconds: seconds of every rank, [N, ranks].
    """
    quartile: FloatArray = np.sort(seconds, axis=1)[:, (seconds.shape[1] - 1) // 4]
    return quartile
