"""Event replay of asynchronous ranks: dependencies between steps are kept, durations may change.

The training ends when as many samples have been processed as in the run. A rank that has repeated
all of its recorded steps continues at its mean rate since warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laggard.analysis.replay.asynchronous.step_dependencies import StepDependencies, sort_events
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline

_PRECISION = 1e-10
"""Relative tolerance of the makespan."""


@dataclass(frozen=True)
class StepDurations:
    """Durations of every step of every rank, in seconds, for C replays at once, [W][C or 1, N].

    Attributes:
        before: seconds of a step before its possible wait.
        after: seconds of a step after its possible wait.
        earlier_s: seconds by which messages that a step needs arrive earlier than measured; may be
            empty.
    """

    before: tuple[FloatArray, ...]
    after: tuple[FloatArray, ...]
    earlier_s: tuple[FloatArray, ...] = ()


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
    def _order(self) -> tuple[tuple[int, int, bool], ...]:
        return sort_events(self.dependencies)

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
        count = max(len(each) for each in (*durations.before, *durations.after))
        clock = [
            np.full(count, float(rank_timeline.start_s[0])) for rank_timeline in self.rank_timelines
        ]
        ready = [np.empty((len(rank_timeline), count)) for rank_timeline in self.rank_timelines]
        end = [np.empty((len(rank_timeline), count)) for rank_timeline in self.rank_timelines]
        # Each step has two events: ready for the wait, and resumed after it. The order guarantees
        # that the times which an event needs have been computed.
        for rank, step, goes_on in self._order:
            if not goes_on:
                clock[rank] = ready[rank][step] = clock[rank] + durations.before[rank][:, step]
                continue
            earlier_s = durations.earlier_s[rank][:, step] if durations.earlier_s else 0.0
            clock[rank] = (
                _compute_resume_s(clock[rank], self.dependencies[rank][step], ready, end, earlier_s)
                + durations.after[rank][:, step]
            )
            end[rank][step] = clock[rank]
        return tuple(np.ascontiguousarray(each.T) for each in end)

    def goal_samples(self) -> float:
        """Return the samples processed until the training ended; unfinished steps count in part."""
        return _count_samples_by(
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
                self._over([each[c] for each in end_times], goal_samples)
                for c in range(len(end_times[0]))
            ]
        )

    def _over(self, end_times: Sequence[FloatArray], goal_samples: float) -> float:
        from scipy.optimize import brentq

        progress = [
            _build_progress(rank_timeline, end)
            for rank_timeline, end in zip(self.rank_timelines, end_times, strict=True)
        ]
        # The number of samples grows with time, so doubling finds a bracket for the root.
        low, high = 0.0, self.end_s
        while _count_samples_by(high, progress) < goal_samples:
            low, high = high, 2 * high
        found: float = brentq(
            lambda time_s: _count_samples_by(time_s, progress) - goal_samples,
            low,
            high,
            rtol=_PRECISION,
        )
        return found


@dataclass(frozen=True)
class _Progress:
    """Samples that one rank has processed over time.

    Attributes:
        when_s: start of the first step and end of every step, [N + 1].
        samples_learned: samples processed by then, [N + 1].
        rate: samples per second after the last recorded step.
    """

    when_s: FloatArray
    samples_learned: FloatArray
    rate: float


def _build_progress(rank_timeline: RankTimeline, end_s: FloatArray) -> _Progress:
    when, samples_learned = (
        np.concatenate([rank_timeline.start_s[:1], end_s]),
        np.concatenate([[0.0], np.cumsum(rank_timeline.samples)]),
    )
    begun = _find_first_usual_step(rank_timeline)
    took_s = float(when[-1] - when[begun])
    return _Progress(
        when,
        samples_learned,
        float(samples_learned[-1] - samples_learned[begun]) / took_s if took_s > 0 else 0.0,
    )


def _count_samples_by(time_s: float, progress: Sequence[_Progress]) -> float:
    """Return the samples processed at a time; a step in progress counts in part."""
    total = 0.0
    for course in progress:
        beyond_s = max(time_s - float(course.when_s[-1]), 0.0)
        total += (
            float(np.interp(time_s, course.when_s, course.samples_learned)) + course.rate * beyond_s
        )
    return total


def _find_first_usual_step(rank_timeline: RankTimeline) -> int:
    """Return the first step after warm-up, or 0 without one."""
    usual = np.flatnonzero(~rank_timeline.warm_up)
    return int(usual[0]) if len(usual) else 0


def _compute_resume_s(
    clock: FloatArray,
    dependencies: StepDependencies,
    ready: Sequence[FloatArray],
    end: Sequence[FloatArray],
    earlier_s: FloatArray | float,
) -> FloatArray:
    """Return the times at which a rank resumes that became ready at `clock`, [C]."""
    if not dependencies.required:
        return clock
    come = [
        (end if dependency.ended else ready)[dependency.rank][dependency.step]
        + np.maximum(dependency.lag_s - earlier_s, 0.0)
        for dependency in dependencies.required
    ]
    # The latest `spare` arrivals are not waited for.
    if dependencies.spare:
        come = list(np.sort(np.stack(come), axis=0)[: len(come) - dependencies.spare])
    return np.asarray(np.maximum.reduce([clock, *come]))
