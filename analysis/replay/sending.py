"""What ranks send for themselves before a barrier, as to a server: no collective, but links that are slow for a while slow it as well."""

from __future__ import annotations

import numpy as np

from laggard.analysis.causes import Cause
from laggard.analysis.columns import BoolArray, FloatArray
from laggard.analysis.intervals import LEAST_STEPS
from laggard.analysis.replay.timeline import Timeline
from laggard.span_schema import Phase

COMM = Phase.COMM.code


def sent_slowly(timeline: Timeline, rank: int, cause: Cause) -> tuple[BoolArray, float]:
    """Steps in which a slow time of the network slows what a rank sends, [S], and how many times; none, and 1, where it does not.

    Args:
        timeline: the run.
        rank: whose.
        cause: of the network, and of no rank.
    """
    seconds = timeline.work.of_rank(rank, [COMM])[:, 0]
    counted = (seconds > 0) & ~timeline.warm_up
    covered = cause.covers(len(seconds)) & counted
    rest = seconds[counted & ~covered]
    if not covered.any() or len(rest) < LEAST_STEPS:
        return np.zeros(len(seconds), dtype=np.bool_), 1.0
    return covered, max(float(np.median(seconds[covered]) / np.median(rest)), 1.0)


def usually_sent_s(timeline: Timeline, rank: int, covered: BoolArray) -> FloatArray:
    """What the rank's sending takes in the other steps, for each step, [S]."""
    seconds = timeline.work.of_rank(rank, [COMM])[:, 0]
    return np.full(len(seconds), float(np.median(seconds[(seconds > 0) & ~timeline.warm_up & ~covered])))
