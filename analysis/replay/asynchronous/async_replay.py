"""Replay of asynchronous ranks: the waits between steps follow the rule, durations may change.

The training ends when as many samples have been processed as in the run. A rank that has repeated
all of its recorded steps continues at its mean rate since warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.simulation.group_steps import GroupSteps
from laggard.core.simulation.progress import RankProgress, count_samples_by, find_goal_time_s
from laggard.core.simulation.step_graph import StepDurations, StepGraph


@dataclass(frozen=True)
class AsyncReplay:
    """Run of asynchronous ranks that can be replayed.

    Attributes:
        rank_timelines: timeline of every rank.
        steps: steps of the ranks, and their waits for each other.
        end_s: time at which the training ended.
    """

    rank_timelines: tuple[RankTimeline, ...]
    steps: StepGraph | GroupSteps
    end_s: float

    def observed(self) -> StepDurations:
        """Return the measured durations, whose makespan is the run's."""
        return StepDurations(
            tuple((each.ready_s - each.start_s)[None] for each in self.rank_timelines),
            tuple((each.end_s - each.resume_s)[None] for each in self.rank_timelines),
        )

    @cached_property
    def goal_samples(self) -> float:
        """Samples processed until the training ended; unfinished steps count in part."""
        return count_samples_by(
            self.end_s, self._build_progress([each.end_s for each in self.rank_timelines])
        )

    def compute_makespans(self, durations: StepDurations) -> FloatArray:
        """Return the times at which the goal is reached, in seconds since the first step, [C]."""
        end_times = self.steps.end_times(durations)
        return np.array(
            [
                find_goal_time_s(self._build_progress(ends_s), self.goal_samples, self.end_s)
                for ends_s in zip(*end_times, strict=True)
            ]
        )

    def _build_progress(self, ends_s: Sequence[FloatArray]) -> list[RankProgress]:
        """Return the progress of every rank whose steps end at these times, [W][N]."""
        return [
            _build_rank_progress(rank_timeline, end_s)
            for rank_timeline, end_s in zip(self.rank_timelines, ends_s, strict=True)
        ]


def _build_rank_progress(rank_timeline: RankTimeline, end_s: FloatArray) -> RankProgress:
    when = np.concatenate([rank_timeline.start_s[:1], end_s])
    samples_learned = np.concatenate([[0.0], np.cumsum(rank_timeline.samples)])
    usual = np.flatnonzero(~rank_timeline.warm_up)
    begun = int(usual[0]) if len(usual) else 0
    took_s = float(when[-1] - when[begun])
    return RankProgress(
        when,
        samples_learned,
        float(samples_learned[-1] - samples_learned[begun]) / took_s if took_s > 0 else 0.0,
    )
