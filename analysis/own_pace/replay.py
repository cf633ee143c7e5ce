"""Ranks of their own pace, replayed: what they need of each other stays as it was, durations may be
others.

The training is over when as much has been learnt as in the run. A rank that comes to the end of
what it did there before goes on as it had since its warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laggard.analysis.columns import FloatArray
from laggard.analysis.own_pace.needs import Needs, order_of_events
from laggard.analysis.own_pace.paces import Pace

_PRECISION = 1e-10


@dataclass(frozen=True)
class Durations:
    """Seconds of every step of every rank, for C replays side by side, [W][C or 1, N]: before it
    may have to wait, and behind.

    By `sooner`, where there is any, word of what the step needs is there earlier than it was.
    """

    before: tuple[FloatArray, ...]
    after: tuple[FloatArray, ...]
    sooner: tuple[FloatArray, ...] = ()


@dataclass(frozen=True)
class Race:
    """A run that can be replayed.

    Attributes:
        paces: of every rank.
        needs: what every step needs, [W][N].
        end_s: when the training was over.
    """

    paces: tuple[Pace, ...]
    needs: tuple[tuple[Needs, ...], ...]
    end_s: float

    @cached_property
    def _order(self) -> tuple[tuple[int, int, bool], ...]:
        return order_of_events(self.needs)

    def observed(self) -> Durations:
        """What was measured; its makespan is the run's."""
        return Durations(
            tuple((pace.ready_s - pace.start_s)[None] for pace in self.paces),
            tuple((pace.end_s - pace.go_s)[None] for pace in self.paces),
        )

    def ends(self, durations: Durations) -> tuple[FloatArray, ...]:
        """When every step of every rank ends, [W][C, N]."""
        count = max(len(each) for each in (*durations.before, *durations.after))
        clock = [np.full(count, float(pace.start_s[0])) for pace in self.paces]
        ready = [np.empty((len(pace), count)) for pace in self.paces]
        end = [np.empty((len(pace), count)) for pace in self.paces]
        for rank, step, goes_on in self._order:
            if not goes_on:
                clock[rank] = ready[rank][step] = clock[rank] + durations.before[rank][:, step]
                continue
            sooner = durations.sooner[rank][:, step] if durations.sooner else 0.0
            clock[rank] = (
                _met(clock[rank], self.needs[rank][step], ready, end, sooner)
                + durations.after[rank][:, step]
            )
            end[rank][step] = clock[rank]
        return tuple(np.ascontiguousarray(each.T) for each in end)

    def goal(self) -> float:
        """Samples that were learnt from until the training was over, those of steps under way in
        part.
        """
        return _learnt_by(self.end_s, [_course(pace, pace.end_s) for pace in self.paces])

    def makespans(self, durations: Durations, goal: float) -> FloatArray:
        """When as many samples are learnt from, in seconds since the first step, [C]."""
        ends = self.ends(durations)
        return np.array([self._over([each[c] for each in ends], goal) for c in range(len(ends[0]))])

    def _over(self, ends: Sequence[FloatArray], goal: float) -> float:
        from scipy.optimize import brentq

        courses = [_course(pace, end) for pace, end in zip(self.paces, ends, strict=True)]
        low, high = 0.0, self.end_s
        while _learnt_by(high, courses) < goal:
            low, high = high, 2 * high
        found: float = brentq(
            lambda time_s: _learnt_by(time_s, courses) - goal, low, high, rtol=_PRECISION
        )
        return found


@dataclass(frozen=True)
class _Course:
    """What one rank had learnt from when, [N + 1], and how many samples a second it learns from
    behind that.
    """

    when_s: FloatArray
    learnt: FloatArray
    rate: float


def _course(pace: Pace, end_s: FloatArray) -> _Course:
    when, learnt = (
        np.concatenate([pace.start_s[:1], end_s]),
        np.concatenate([[0.0], np.cumsum(pace.samples)]),
    )
    begun = _past_warm_up(pace)
    took_s = float(when[-1] - when[begun])
    return _Course(when, learnt, float(learnt[-1] - learnt[begun]) / took_s if took_s > 0 else 0.0)


def _learnt_by(time_s: float, courses: Sequence[_Course]) -> float:
    """Samples by then, those of a step that is under way in part."""
    total = 0.0
    for course in courses:
        beyond_s = max(time_s - float(course.when_s[-1]), 0.0)
        total += float(np.interp(time_s, course.when_s, course.learnt)) + course.rate * beyond_s
    return total


def _past_warm_up(pace: Pace) -> int:
    """The first step that tells how fast a rank goes."""
    usual = np.flatnonzero(~pace.warm_up)
    return int(usual[0]) if len(usual) else 0


def _met(
    clock: FloatArray,
    needs: Needs,
    ready: Sequence[FloatArray],
    end: Sequence[FloatArray],
    sooner: FloatArray | float,
) -> FloatArray:
    """When a rank goes on that was ready at `clock`, [C]."""
    if not needs.of:
        return clock
    come = [
        (end if need.ended else ready)[need.rank][need.step] + np.maximum(need.lag_s - sooner, 0.0)
        for need in needs.of
    ]
    if needs.spare:
        come = list(np.sort(np.stack(come), axis=0)[: len(come) - needs.spare])
    return np.asarray(np.maximum.reduce([clock, *come]))
