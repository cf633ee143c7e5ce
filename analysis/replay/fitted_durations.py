"""Recorded durations of a repeated operation, split into usual duration, slowness and jitter.

See `laggard.core.simulation.recorded_durations` for what the parts mean.
"""

from __future__ import annotations

import numpy as np

from laggard.analysis.detection.intervals import MIN_RATIO
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.core.simulation.recorded_durations import RecordedDurations

_MIN_S = 1e-9


def fit_recorded_durations(
    fixed_s: float,
    sample_s: float,
    start_s: FloatArray,
    end_s: FloatArray,
    ratio: FloatArray,
    warm_up: BoolArray,
) -> RecordedDurations:
    """Split recorded durations into usual duration, slowness and jitter.

    Args:
        fixed_s: usual seconds, independent of samples.
        sample_s: usual additional seconds per sample.
        start_s: starts of the operations, ascending, [N], at least one.
        end_s: ends of the operations, [N].
        ratio: measured over usual durations, [N].
        warm_up: mask of the operations that say nothing about the slowness of the time, [N].
    """
    logs = np.log(np.maximum(ratio, _MIN_S))
    level = np.zeros(len(logs))
    usual = np.flatnonzero(~warm_up)
    if len(usual) >= 3:
        # Running median of three, with the first and the last value repeated at the ends.
        padded = np.concatenate([logs[usual[:1]], logs[usual], logs[usual[-1:]]])
        level[usual] = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    level = np.where(np.abs(level) >= np.log(MIN_RATIO), level, 0.0)
    # The slowness changes halfway between two operations, and ends with the last one.
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
