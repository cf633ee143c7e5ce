"""Who a collective waited for: the latest arrival at every group of communication spans."""

from __future__ import annotations

import numpy as np

from laggard.analysis.columns import IntArray, SpanColumns
from laggard.span_schema import NO_GROUP


def latest_arrivals(collectives: SpanColumns) -> IntArray:
    """When the last rank arrived at the collective that each span is part of.

    Args:
        collectives: communication spans of one lane.

    Returns:
        Nanoseconds, [N]; a span without a group waits for nobody and has its own start.
    """
    keys = np.column_stack([collectives.step, collectives.group])
    _, instance = np.unique(keys, axis=0, return_inverse=True)
    latest = np.full(len(collectives), np.iinfo(np.int64).min)
    np.maximum.at(latest, instance.ravel(), collectives.start_ns)
    return np.where(collectives.group == NO_GROUP, collectives.start_ns, latest[instance.ravel()])
