"""Duration of a ring all-reduce over unequal links.

In a ring all-reduce of S bytes over n hosts (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69,
2009) every link carries n - 1 parts of S / n that are summed, then n - 1 parts of sums. gloo
(`allreduce.cc`) sends a part as two halves. A half leaves a host when its receiver has reported
that it waits for it, and a host begins with a half when it has received and sent the half before
the last one. So no host is ever more than one part ahead of a neighbor, and all hosts advance at
the pace of the slowest link: a part takes the longer of two times, both halves on the wire, or one
round trip and one half. Between the sums and their distribution a host waits for all of its halves,
which costs a round trip or a half once more, whichever is shorter. A host that arrives early
completes a few parts before the others arrive. A host that is held back also needs processor time
for every part, while other parts are on their way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.links import NetworkHop


def compute_ring_finish_s(
    arrival_s: FloatArray,
    hops: Sequence[NetworkHop],
    payload_bytes: float,
    handling_s: FloatArray | float = 0.0,
) -> FloatArray:
    """Return the times at which hosts finish an all-reduce over a ring.

    Args:
        arrival_s: time at which each host arrives, [E, n], in the order of the ring: the i-th host
            sends over `hops[i]` to the next.
        hops: the n links of the ring; at least two.
        payload_bytes: size of the reduced data.
        handling_s: processor seconds of each host for every part, [n].

    Returns:
        Time at which each host finishes, [E, n].
    """
    count = len(hops)
    half_s = np.array([payload_bytes / count * 4e-6 / hop.rate_mbps for hop in hops])
    way_s = np.array([hop.rtt_ms / 2e3 for hop in hops])
    free = np.full_like(arrival_s, -np.inf)
    done = arrival_s
    for _ in ("sums", "their distribution"):
        # `begun` is the time at which a host begins with a half, the earlier one first; `free` the
        # time at which its link has carried all that the host has sent.
        begun = later = done
        for _ in range(2 * (count - 1)):
            left = np.maximum(np.maximum(begun, np.roll(begun, -1, axis=1) + way_s), free)
            free = left + half_s
            received = np.roll(free + way_s, 1, axis=1)
            begun, later = later, np.maximum(np.maximum(received, left), later + handling_s / 2.0)
        done = later
    finish: FloatArray = done
    return finish
