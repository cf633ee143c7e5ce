"""Ranks of their own pace, replayed: what they need of each other stays as it was, durations may be others.

The training is over when as much has been learnt as in the run. A rank that comes to the end of what it did there before goes on as it had since its warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laggard.analysis.columns import FloatArray
from laggard.analysis.own_pace.needs import Needs, order_of_events
from laggard.analysis.own_pace.paces import Pace

_HALVINGS = 60


@dataclass(frozen=True)
class Durations:
    """Seconds of every step of every rank, for C replays side by side, [W][C or 1, N]: before it may have to wait, and behind.

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
            clock[rank] = _met(clock[rank], self.needs[rank][step], ready, end, sooner) + durations.after[rank][:, step]
            end[rank][step] = clock[rank]
        return tuple(np.ascontiguousarray(each.T) for each in end)

    def goal(self) -> float:
        """Samples that were learnt from until the training was over, those of steps under way in part."""
        return self._learnt([pace.end_s for pace in self.paces], self.end_s)

    def makespans(self, durations: Durations, goal: float) -> FloatArray:
        """When as many samples are learnt from, in seconds since the first step, [C]."""
        ends = self.ends(durations)
        return np.array([self._over([each[c] for each in ends], goal) for c in range(len(ends[0]))])

    def _over(self, ends: Sequence[FloatArray], goal: float) -> float:
        low, high = 0.0, self.end_s
        while self._learnt(ends, high) < goal:
            low, high = high, 2 * high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._learnt(ends, middle) < goal else (low, middle)
        return (low + high) / 2

    def _learnt(self, ends: Sequence[FloatArray], time_s: float) -> float:
        """Samples by then, those of a step that is under way in part."""
        total = 0.0
        for pace, end in zip(self.paces, ends, strict=True):
            learnt = np.concatenate([[0.0], np.cumsum(pace.samples)])
            when = np.concatenate([pace.start_s[:1], end])
            total += float(np.interp(time_s, when, learnt))
            begun = _past_warm_up(pace)
            if time_s > when[-1] > when[begun]:
                total += float((learnt[-1] - learnt[begun]) * (time_s - when[-1]) / (when[-1] - when[begun]))
        return total


def _past_warm_up(pace: Pace) -> int:
    """The first step that tells how fast a rank goes."""
    usual = np.flatnonzero(~pace.warm_up)
    return int(usual[0]) if len(usual) else 0


def _met(
    clock: FloatArray, needs: Needs, ready: Sequence[FloatArray], end: Sequence[FloatArray], sooner: FloatArray | float
) -> FloatArray:
    """When a rank goes on that was ready at `clock`, [C]."""
    if not needs.of:
        return clock
    come = [
        (end if need.ended else ready)[need.rank][need.step] + np.maximum(need.lag_s - sooner, 0.0) for need in needs.of
    ]
    if needs.spare:
        come = list(np.sort(np.stack(come), axis=0)[: len(come) - needs.spare])
    return np.asarray(np.maximum.reduce([clock, *come]))
