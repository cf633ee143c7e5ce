"""Who a collective waited for, and how long: the latest arrival at every group of communication
spans.
"""

from __future__ import annotations

import numpy as np

from laggard.analysis.tables.columns import IntArray, SpanColumns
from laggard.analysis.tables.load_run import RunData
from laggard.core.span_schema import NO_GROUP, Phase


def find_latest_arrivals(collectives: SpanColumns) -> IntArray:
    """When the last rank arrived at the collective that each span is part of.

    Args:
        collectives: communication spans of one lane.

    Returns:
        Nanoseconds, [N]; a span without a group waits for nobody and has its own start.
    """
    keys = collectives.step * (collectives.group.max(initial=0) + 2) + collectives.group
    _, instance = np.unique(keys, return_inverse=True)
    latest = np.full(len(collectives), np.iinfo(np.int64).min)
    np.maximum.at(latest, instance, collectives.start_ns)
    return np.where(collectives.group == NO_GROUP, collectives.start_ns, latest[instance])


def compute_wait_ns(run: RunData, spans: SpanColumns) -> IntArray:
    """How much of each span its rank waited.

    Ranks in lockstep wait at a collective, and at a pause for evaluation, until the last has come;
    those of their own pace wait while their communication carries nothing. Another tool may not
    tell what is carried: there it is the time before the last has come, again.

    Args:
        run: whose spans these are.
        spans: of one lane.

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
