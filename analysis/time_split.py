"""Where every rank's time went: an exact additive split that sums to makespan plus evaluation."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from laggard.analysis.columns import FloatArray
from laggard.analysis.replay.timeline import Timeline
from laggard.span_schema import COMPUTE_PHASES, Phase


@dataclass(frozen=True)
class TimeSplit:
    """Seconds per rank, [W] each; the sum over the parts is the same for every rank: makespan + outside clock.

    Attributes:
        fetch_s: getting samples.
        prep_s: preparing them.
        compute_s: h2d, forward, backward, optimizer.
        transfer_s: collectives after the last rank had arrived, and sending to one other.
        wait_s: waiting for the last to arrive (collectives, evaluation, the end of the run).
        other_s: everything in between: bookkeeping, checkpoints, resuming from a pause.
        evaluate_s: pauses outside the clock.
    """

    fetch_s: FloatArray
    prep_s: FloatArray
    compute_s: FloatArray
    transfer_s: FloatArray
    wait_s: FloatArray
    other_s: FloatArray
    evaluate_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Sum of the parts per rank, [W]."""
        parts: FloatArray = np.stack([getattr(self, f.name) for f in fields(self)])
        total: FloatArray = parts.sum(axis=0)
        return total


def split_time(timeline: Timeline) -> TimeSplit:
    """Splits every rank's time from the first-step barrier to the end of the run.

    Args:
        timeline: the run.

    Returns:
        Parts whose sum is `timeline.makespan + timeline.outside.sum()` for every rank, to rounding.
    """
    phases = timeline.seconds.sum(axis=0)
    collective = ~timeline.pause
    transfer = timeline.transfer[collective].sum(axis=0) + phases[:, Phase.COMM.code]
    outside = np.full_like(timeline.end, timeline.outside.sum())
    fetch, prep = phases[:, Phase.FETCH.code], phases[:, Phase.PREP.code]
    compute = phases[:, [p.code for p in COMPUTE_PHASES if p is not Phase.PREP]].sum(axis=1)
    wait = timeline.wait.sum(axis=0) + (timeline.end.max() - timeline.end)
    known = fetch + prep + compute + transfer + wait + outside
    return TimeSplit(fetch, prep, compute, transfer, wait, timeline.end.max() - known, outside)
