"""Waiting of ranks for the latest arrival at each collective."""

from __future__ import annotations

import numpy as np

from laggard.analysis.tables.columns import IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.span_schema import NO_GROUP, Flag, Lane, Phase


def find_latest_arrivals(collectives: SpanColumns) -> IntArray:
    """Return the time of the last arrival at each span's collective.

    Args:
        collectives: communication spans of one lane.

    Returns:
        Nanoseconds, [N]. A span without a group waits for no other rank, so the time is its own
        start. A receiver of a message waits for the post of its sender.
    """
    # One key per step and group: groups range from -1 (`NO_GROUP`) to the maximum.
    keys = collectives.step * (collectives.group.max(initial=0) + 2) + collectives.group
    known, instance = np.unique(keys, return_inverse=True)
    latest = np.full(len(collectives), np.iinfo(np.int64).min)
    np.maximum.at(latest, instance, collectives.start_ns)
    posts = (collectives.flags & Flag.ASYNC != 0) & (collectives.group != NO_GROUP)
    posts &= collectives.lane == Lane.MAIN
    posted = np.unique(instance[posts])
    waiting = posted + 1
    follows = waiting < len(known)
    posted, waiting = posted[follows], waiting[follows]
    follows = known[waiting] == known[posted] + 1
    posted, waiting = posted[follows], waiting[follows]
    latest[waiting] = np.maximum(latest[waiting], latest[posted])
    return np.where(collectives.group == NO_GROUP, collectives.start_ns, latest[instance])


def compute_wait_ns(run: RunData, spans: SpanColumns) -> IntArray:
    """Return the part of each span during which its rank waited.

    - Ranks in lockstep wait at a collective, and at an evaluation pause, until the last rank has
      arrived.
    - Asynchronous ranks wait while their communication carries no data.
    - A trace of another tool may not record the carried data, so the time until the last arrival
      is used again.

    Args:
        run: run that the spans belong to.
        spans: spans of one lane.

    Returns:
        Nanoseconds from the start of each span, [N].
    """
    if not run.is_lockstep and (run.record is None or run.record.origin is None):
        return np.where((spans.phase == Phase.COMM.code) & (spans.bytes == 0), spans.dur_ns, 0)
    waited = np.zeros(len(spans), dtype=np.int64)
    for phase in (Phase.COMM, Phase.EVALUATE):
        meeting = spans.phase == phase.code
        met = spans.where(meeting)
        waited[meeting] = np.clip(find_latest_arrivals(met) - met.start_ns, 0, met.dur_ns)
    return waited
