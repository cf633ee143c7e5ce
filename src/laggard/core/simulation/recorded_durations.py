"""Recorded durations of a repeated operation (a step, an all-reduce), to repeat at other times.

A duration is split into three factors: the usual duration, a slowness that belongs to the time,
and jitter that belongs to the single operation. If the median of three consecutive operations
differs from the usual duration by 10 % or more, the time was slow (or fast), and any operation at
that time has the same slowness under any strategy. An operation that differs from its neighbors
has jitter. Jitter is repeated in order, that of the warm-up only once. After the end of the
recording no time is slow.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    def compute_end_s(self, start_s: float, seconds: float) -> float:
        """Return the end of an operation that starts at `start_s`.

        `seconds` is its duration outside slow periods.
        """
        place = int(np.searchsorted(self.edges_s, start_s, side="right"))
        now_s, left_s = start_s, seconds
        while place < len(self.edges_s):
            room_s = float(self.edges_s[place]) - now_s
            factor = float(self.factors[place])
            if left_s * factor <= room_s:
                return now_s + left_s * factor
            left_s -= room_s / factor
            now_s, place = float(self.edges_s[place]), place + 1
        return now_s + left_s * float(self.factors[-1])

    def compute_work_s(self, start_s: float, end_s: float) -> float:
        """Return the work that is possible between two times, as seconds outside slow periods."""
        edges = self.edges_s[(self.edges_s > start_s) & (self.edges_s < end_s)]
        moments = np.concatenate([[start_s], edges, [end_s]])
        factors = self.factors[np.searchsorted(self.edges_s, moments[:-1], side="right")]
        return float((np.diff(moments) / factors).sum())

    def compute_finish_s(self, start_s: float, count: int, samples: float = 0.0) -> float:
        """Return the end of the `count`-th operation if it starts at `start_s`."""
        return self.compute_end_s(start_s, self.seconds(count, samples))


def create_constant_duration(seconds: float) -> RecordedDurations:
    """Return durations that are always `seconds`."""
    return RecordedDurations(seconds, 0.0, np.ones(1), 0, np.zeros(0), np.ones(1))
