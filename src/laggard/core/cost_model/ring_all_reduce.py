"""Duration of a ring all-reduce over unequal links.

In a ring all-reduce of S bytes over n hosts (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69,
2009) every link carries 2 (n - 1) parts of S / n, one after the other. gloo sends a part as two
halves, each after the receiver has reported that it waits for it. A host starts its next part when
it has received one part and sent one. So no host is ever more than one part ahead of a neighbor,
and all hosts advance at the pace of the slowest link. A part takes the longer of two times: both
halves on the wire, or one round trip and one half. A host that arrives early completes a few parts
before the others arrive. A host that is held back also needs processor time for every part, while
other parts are on their way.
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
    done, sent = arrival_s, np.full_like(arrival_s, -np.inf)
    # One iteration per part. `done` is the time at which a host may start its next part, `sent`
    # the time at which its first half may leave: the receiver has asked for it, and the sender's
    # last part has left the link.
    for _ in range(2 * (count - 1)):
        waited_for = np.roll(done, -1, axis=1) + way_s
        sent = np.maximum(np.maximum(done, waited_for), sent + 2.0 * half_s)
        received = np.roll(sent + half_s + way_s, 1, axis=1)
        done = np.maximum(np.maximum(received, sent), done + handling_s)
    finish: FloatArray = done + np.roll(half_s, 1)
    return finish
