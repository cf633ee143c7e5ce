"""Recorded durations of a repeated operation (a step, an all-reduce), to repeat at other times.

A duration is split into three factors: the usual duration, a slowness that belongs to the time,
and jitter that belongs to the single operation. If the median of three consecutive operations
differs from the usual duration by 10 % or more, the time was slow (or fast), and any operation at
that time has the same slowness under any strategy. An operation that differs from its neighbors
has jitter. Jitter is repeated in order, that of the warm-up only once. After the end of the
recording no time is slow.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from laggard.core.cost_model.arrays import FloatArray


@dataclass(frozen=True)
class RecordedDurations:
    """Durations of a repeated operation.

    Attributes:
        fixed_s: usual seconds, independent of samples.
        sample_s: usual additional seconds per sample.
        jitter: jitter factors of the recorded operations, in order, [N].
        usual_from: index of the first operation after warm-up.
        edges_s: times at which the slowness changes, ascending, [M].
        factors: slowness before, between and after these times, [M + 1].
    """

    fixed_s: float
    sample_s: float
    jitter: FloatArray
    usual_from: int
    edges_s: FloatArray
    factors: FloatArray

    def seconds(self, count: int, samples: float = 0.0) -> float:
        """Return the seconds of the `count`-th operation (from 0) outside slow periods."""
        beyond = count - len(self.jitter)
        place = (
            count if beyond < 0 else self.usual_from + beyond % (len(self.jitter) - self.usual_from)
        )
        return (self.fixed_s + self.sample_s * samples) * float(self.jitter[place])

    # Lists and `bisect` are several times faster than arrays for one number at a time.
    @cached_property
    def _edges_s(self) -> list[float]:
        return [float(edge_s) for edge_s in self.edges_s]

    @cached_property
    def _factors(self) -> list[float]:
        return [float(factor) for factor in self.factors]

    def compute_end_s(self, start_s: float, seconds: float) -> float:
        """Return the end of an operation that starts at `start_s`.

        `seconds` is its duration outside slow periods.
        """
        place = bisect_right(self._edges_s, start_s)
        now_s, left_s = start_s, seconds
        for edge_s, factor in zip(self._edges_s[place:], self._factors[place:], strict=False):
            room_s = edge_s - now_s
            if left_s * factor <= room_s:
                return now_s + left_s * factor
            left_s -= room_s / factor
            now_s = edge_s
        return now_s + left_s * self._factors[-1]

    def compute_work_s(self, start_s: float, end_s: float) -> float:
        """Return the work that is possible between two times, as seconds outside slow periods."""
        first, last = bisect_right(self._edges_s, start_s), bisect_left(self._edges_s, end_s)
        moments = [start_s, *self._edges_s[first:last], end_s]
        return sum(
            (later_s - earlier_s) / factor
            for (earlier_s, later_s), factor in zip(
                pairwise(moments), self._factors[first:], strict=False
            )
        )

    def compute_finish_s(self, start_s: float, count: int, samples: float = 0.0) -> float:
        """Return the end of the `count`-th operation if it starts at `start_s`."""
        return self.compute_end_s(start_s, self.seconds(count, samples))


def create_constant_duration(seconds: float) -> RecordedDurations:
    """Return durations that are always `seconds`."""
    return RecordedDurations(seconds, 0.0, np.ones(1), 0, np.zeros(0), np.ones(1))
