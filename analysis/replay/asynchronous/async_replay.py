"""Event replay of asynchronous ranks: dependencies between steps are kept, durations may change.

The training ends when as many samples have been processed as in the run. A rank that has repeated
all of its recorded steps continues at its mean rate since warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.simulation.progress import RankProgress, count_samples_by, find_goal_time_s
from laggard.core.simulation.step_graph import StepDependencies, StepDurations, StepGraph


@dataclass(frozen=True)
class AsyncReplay:
    """Run of asynchronous ranks that can be replayed.

    Attributes:
        rank_timelines: timeline of every rank.
        dependencies: dependencies of every step, [W][N].
        end_s: time at which the training ended.
    """

    rank_timelines: tuple[RankTimeline, ...]
    dependencies: tuple[tuple[StepDependencies, ...], ...]
    end_s: float

    @cached_property
    def _graph(self) -> StepGraph:
        starts_s = tuple(float(each.start_s[0]) for each in self.rank_timelines)
        return StepGraph(starts_s, self.dependencies)

    def observed(self) -> StepDurations:
        """Return the measured durations, whose makespan is the run's."""
        return StepDurations(
            tuple(
                (rank_timeline.ready_s - rank_timeline.start_s)[None]
                for rank_timeline in self.rank_timelines
            ),
            tuple(
                (rank_timeline.end_s - rank_timeline.resume_s)[None]
                for rank_timeline in self.rank_timelines
            ),
        )

    def end_times(self, durations: StepDurations) -> tuple[FloatArray, ...]:
        """Return the end of every step of every rank, [W][C, N]."""
        return self._graph.end_times(durations)

    def goal_samples(self) -> float:
        """Return the samples processed until the training ended; unfinished steps count in part."""
        return count_samples_by(
            self.end_s,
            [
                _build_progress(rank_timeline, rank_timeline.end_s)
                for rank_timeline in self.rank_timelines
            ],
        )

    def compute_makespans(self, durations: StepDurations, goal_samples: float) -> FloatArray:
        """Return the times at which the goal is reached, in seconds since the first step, [C]."""
        end_times = self.end_times(durations)
        return np.array(
            [
                find_goal_time_s(
                    [
                        _build_progress(rank_timeline, end[c])
                        for rank_timeline, end in zip(self.rank_timelines, end_times, strict=True)
                    ],
                    goal_samples,
                    self.end_s,
                )
                for c in range(len(end_times[0]))
            ]
        )


def _build_progress(rank_timeline: RankTimeline, end_s: FloatArray) -> RankProgress:
    when, samples_learned = (
        np.concatenate([rank_timeline.start_s[:1], end_s]),
        np.concatenate([[0.0], np.cumsum(rank_timeline.samples)]),
    )
    begun = _find_first_usual_step(rank_timeline)
    took_s = float(when[-1] - when[begun])
    return RankProgress(
        when,
        samples_learned,
        float(samples_learned[-1] - samples_learned[begun]) / took_s if took_s > 0 else 0.0,
    )


def _find_first_usual_step(rank_timeline: RankTimeline) -> int:
    """Return the first step after warm-up, or 0 without one."""
    usual = np.flatnonzero(~rank_timeline.warm_up)
    return int(usual[0]) if len(usual) else 0
