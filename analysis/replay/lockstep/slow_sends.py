"""What ranks send for themselves before a barrier, as to a server: no collective, but links that
are slow for a while slow it as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.intervals import MIN_STEPS
from laggard.analysis.tables.columns import BoolArray
from laggard.analysis.tables.timelines.timeline import Timeline
from laggard.core.span_schema import Phase

COMM = Phase.COMM.code


@dataclass(frozen=True)
class SlowSends:
    """A rank's sending in a slow time of the network: in which steps, [S], what it takes in a usual
    one, and how many times as long it took.
    """

    steps: BoolArray
    usual_s: float
    slowdown: float


def measure_slow_sends(timeline: Timeline, rank: int, cause: Cause) -> SlowSends | None:
    """What a slow time of the network does to what a rank sends; None where it slows none of it.

    Args:
        timeline: the run.
        rank: whose.
        cause: of the network, and of no rank.
    """
    seconds = timeline.work.of_rank(rank, [COMM])[:, 0]
    counted = (seconds > 0) & ~timeline.warm_up
    covered = cause.covers(len(seconds)) & counted
    rest = seconds[counted & ~covered]
    if not covered.any() or len(rest) < MIN_STEPS:
        return None
    usual_s = float(np.median(rest))
    slowdown = float(np.median(seconds[covered])) / usual_s
    return SlowSends(covered, usual_s, slowdown) if slowdown > 1.0 else None
