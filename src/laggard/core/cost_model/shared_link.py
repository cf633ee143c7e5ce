"""Messages of one size over one link that they share.

A link that is never idle while a message waits delivers its last message at the same moment,
whether it carries the messages one after another or all at once with equal parts of its rate. A
busy period ends when all that has arrived is sent (Kleinrock, Queueing Systems, 1975). So the last
of n messages is delivered at the latest of: arrival of the k-th, plus the time for it and all later
ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from laggard.core.cost_model.arrays import FloatArray


def compute_last_delivery_s(arrival_s: npt.NDArray[np.floating], message_s: float) -> FloatArray:
    """Return when the last message has left each link.

    Args:
        arrival_s: times at which messages arrive at the links, in any order, [..., n]; they are
            computed with in their own precision.
        message_s: seconds that one message takes alone.

    Returns:
        Times, [...].

    Examples:
        >>> compute_last_delivery_s(np.array([0.0, 0.5, 9.0]), 1.0)
        array(10.)
    """
    if not message_s:
        return np.asarray(arrival_s.max(axis=-1), dtype=np.float64)
    count = arrival_s.shape[-1]
    remaining_s = (message_s * np.arange(count, 0, -1)).astype(arrival_s.dtype)
    ordered = np.sort(arrival_s, axis=-1)
    ordered += remaining_s
    return np.asarray(ordered.max(axis=-1), dtype=np.float64)
