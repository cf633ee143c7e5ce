"""Durations of exchanges in rounds, in each of which the slowest hop sets the pace."""

from __future__ import annotations

import math
from collections.abc import Sequence

from laggard.core.cost_model.links import NetworkHop


def compute_broadcast_s(hops: Sequence[NetworkHop], message_bytes: float) -> float:
    """Return the seconds of a broadcast by doubling.

    In each round, every host that has the message sends it to one that does not.

    Args:
        hops: links from the first host to each of the others.
        message_bytes: size of the message on the wire.
    """
    rounds = math.ceil(math.log2(len(hops) + 1))
    return rounds * max((hop.message_s(message_bytes) for hop in hops), default=0.0)


def compute_ring_average_s(
    hops: Sequence[NetworkHop], message_bytes: float, handling_s: Sequence[float]
) -> float:
    """Return the seconds of an average over a ring of at least two hosts.

    The ring has 2 (n - 1) rounds, in each of which every host forwards an n-th of the model.

    Args:
        hops: links of the ring; each host sends to the next.
        message_bytes: size of the model on the wire.
        handling_s: seconds that each host needs to send, or to receive, an n-th of the model.
    """
    count = len(hops)
    slowest_s = max(
        handling_s[place] + handling_s[place - 1] + hop.message_s(message_bytes / count)
        for place, hop in enumerate(hops)
    )
    return 2 * (count - 1) * slowest_s
