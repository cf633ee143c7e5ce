"""Something that a run did again and again (a rank's steps, an all-reduce), so that it can be done
at other times and more often.

What it took is split in three: what it usually takes, slowness that belongs to the time, and jitter
that belongs to the single one. Where the median of three in a row is 10 % or more off the usual,
the time was slow (or quick): whatever is done just then is as slow, under any strategy. A single
one that is off its neighbours is jitter, and is repeated in order; of the warm-up, only the first
time. Before and behind what was seen nothing is slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.intervals import MIN_RATIO
from laggard.analysis.tables.columns import BoolArray, FloatArray

_MIN_S = 1e-9


@dataclass(frozen=True)
class RecordedDurations:
    """How long the next one takes.

    Attributes:
        fixed_s: what it usually takes, whatever its samples.
        sample_s: and for each sample.
        jitter: what single ones took over that, in order, [N].
        usual_from: the first of these that is no warm-up.
        edges_s: when slow times begin and end, ascending, [M].
        factors: how many times as long everything takes before, between and behind them, [M + 1].
    """

    fixed_s: float
    sample_s: float
    jitter: FloatArray
    usual_from: int
    edges_s: FloatArray
    factors: FloatArray

    def seconds(self, count: int, samples: float = 0.0) -> float:
        """What the `count`-th takes (from 0) where no time is slow."""
        beyond = count - len(self.jitter)
        place = (
            count if beyond < 0 else self.usual_from + beyond % (len(self.jitter) - self.usual_from)
        )
        return (self.fixed_s + self.sample_s * samples) * float(self.jitter[place])

    def compute_end_s(self, start_s: float, seconds: float) -> float:
        """When it is done that is begun then and takes so long where no time is slow."""
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
        """What can be done between two moments, as seconds where no time is slow."""
        edges = self.edges_s[(self.edges_s > start_s) & (self.edges_s < end_s)]
        moments = np.concatenate([[start_s], edges, [end_s]])
        factors = self.factors[np.searchsorted(self.edges_s, moments[:-1], side="right")]
        return float((np.diff(moments) / factors).sum())

    def compute_finish_s(self, start_s: float, count: int, samples: float = 0.0) -> float:
        """When the `count`-th is done, if it begins then."""
        return self.compute_end_s(start_s, self.seconds(count, samples))


def create_constant_duration(seconds: float) -> RecordedDurations:
    """Something that always takes as long."""
    return RecordedDurations(seconds, 0.0, np.ones(1), 0, np.zeros(0), np.ones(1))


def fit_recorded_durations(
    fixed_s: float,
    sample_s: float,
    start_s: FloatArray,
    end_s: FloatArray,
    ratio: FloatArray,
    warm_up: BoolArray,
) -> RecordedDurations:
    """Splits what was seen.

    Args:
        fixed_s: what one usually takes, whatever its samples.
        sample_s: and for each sample.
        start_s: when each began, ascending, [N], one at least.
        end_s: when each was done, [N].
        ratio: what each took over what it usually takes, [N].
        warm_up: those that tell nothing of the time, [N].
    """
    logs = np.log(np.maximum(ratio, _MIN_S))
    level = np.zeros(len(logs))
    usual = np.flatnonzero(~warm_up)
    if len(usual) >= 3:
        padded = np.concatenate([logs[usual[:1]], logs[usual], logs[usual[-1:]]])
        level[usual] = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    level = np.where(np.abs(level) >= np.log(MIN_RATIO), level, 0.0)
    between = (end_s[:-1] + start_s[1:]) / 2.0
    edges = np.concatenate([between, end_s[-1:]])
    return RecordedDurations(
        fixed_s,
        sample_s,
        np.exp(logs - level),
        int(usual[0]) if len(usual) else 0,
        edges,
        np.exp(np.append(level, 0.0)),
    )
