"""Individual sends of ranks before a barrier, as to a server, that slow links slow down too."""

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
    """Sends of one rank during a temporary slowness of the network.

    Attributes:
        steps: mask of the slow steps, [S].
        usual_s: seconds that sending takes in a usual step.
        slowdown: factor by which sending took longer in the slow steps.
    """

    steps: BoolArray
    usual_s: float
    slowdown: float


def measure_slow_sends(timeline: Timeline, rank: int, cause: Cause) -> SlowSends | None:
    """Return the effect of a temporarily slow network on a rank's sends, or None if there is none.

    Args:
        timeline: barriers and work of the run.
        rank: rank that sends.
        cause: cause of the network, without a rank.
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
