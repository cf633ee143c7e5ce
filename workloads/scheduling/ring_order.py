"""Order of hosts in a ring, so that the slowest transfer between neighbors is as short as possible.

All hosts of a ring all-reduce advance at the pace of the slowest transfer to a neighbor
(`core/cost_model/ring_all_reduce.py`). Links that several pairs share carry as many transfers at
the same time as the ring crosses them. The best order is a traveling salesman's problem with the
longest instead of the summed way (P. Gilmore and R. Gomory, Oper. Res. 12, 1964), and is improved
here from several beginnings by reversing parts of the ring and moving single hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from laggard.core.cost_model.arrays import FloatArray, IntArray
from laggard.core.cost_model.links import compute_part_s
from laggard.core.errors import InputError

UNSHARED = -1
"""Number of the shared link of two hosts that share none."""

_MOST_EXACT = 8
_MOST_TRIED = 40_000
"""Orders that are compared before the best one so far is taken."""


@dataclass(frozen=True)
class RingLinks:
    """Links between the hosts of a ring, from each in a row to each in a column.

    Attributes:
        rate_mbps: rate of a pair's own links; infinite if they are unlimited, [N, N].
        rtt_ms: round trip, [N, N].
        shared: number of the link that the pair shares with others, or `UNSHARED`, [N, N].
        shared_mbps: rates of the shared links, [K].
        part_bytes: bytes that each host sends to the next at a time.
    """

    rate_mbps: FloatArray
    rtt_ms: FloatArray
    shared: IntArray
    shared_mbps: FloatArray
    part_bytes: float

    def compute_parts_s(self, order: Sequence[int]) -> FloatArray:
        """Return the seconds in which each host sends a part to the next one, [N]."""
        here, there = np.array(order), np.roll(order, -1)
        rate_mbps = self.rate_mbps[here, there]
        shared = self.shared[here, there]
        crossing = shared != UNSHARED
        if crossing.any():
            links = shared[crossing]
            users = np.bincount(links, minlength=len(self.shared_mbps))[links]
            rate_mbps[crossing] = np.minimum(rate_mbps[crossing], self.shared_mbps[links] / users)
        parts_s: FloatArray = compute_part_s(
            self.part_bytes, rate_mbps, self.rtt_ms[here, there]
        )
        return parts_s


def order_ring(links: RingLinks) -> tuple[int, ...]:
    """Return the hosts in the order of a ring whose slowest transfer is short.

    Of orders with the same slowest transfer, that with the least sum of all transfers counts. The
    first host stays the first. The order as given is kept unless a better one is found. Up to eight
    hosts all orders are compared; among more, a better one may be missed.

    Raises:
        InputError: an array is not a square of the same number of hosts.
    """
    count = len(links.rate_mbps)
    if any(each.shape != (count, count) for each in (links.rate_mbps, links.rtt_ms, links.shared)):
        raise InputError(f"links of a ring of {count} hosts: give a square of each value")
    given = tuple(range(count))
    if count < 3:
        return given
    if count <= _MOST_EXACT:
        found = [(0, *rest) for rest in permutations(range(1, count))]
    else:
        budget = [_MOST_TRIED]
        found = [_improve(start, links, budget) for start in _list_starts(links)]
    best = min((given, *found), key=lambda order: _rank(order, links))
    first = best.index(0)
    return best[first:] + best[:first]


def _rank(order: Sequence[int], links: RingLinks) -> tuple[float, float]:
    parts_s = links.compute_parts_s(order)
    # Rounding errors of equal sums must not decide.
    return (round(float(parts_s.max()), 12), round(float(parts_s.sum()), 9))


def _list_starts(links: RingLinks) -> Iterator[tuple[int, ...]]:
    """Yield the order as given, and from each host the way to the nearest one that is left."""
    count = len(links.rate_mbps)
    yield tuple(range(count))
    alone = np.where(links.shared == UNSHARED, np.inf, 0.0)
    for (row, column), value in np.ndenumerate(links.shared):
        if value != UNSHARED:
            alone[row, column] = links.shared_mbps[value]
    rate_mbps = np.minimum(links.rate_mbps, alone)
    parts_s = compute_part_s(links.part_bytes, rate_mbps, links.rtt_ms)
    for first in range(min(count, 8)):
        order, left = [first], {*range(count)} - {first}
        while left:
            order.append(min(left, key=lambda each: (parts_s[order[-1], each], each)))
            left.discard(order[-1])
        yield tuple(order)


def _improve(order: tuple[int, ...], links: RingLinks, budget: list[int]) -> tuple[int, ...]:
    """Return an order that no reversed part and no moved host makes better."""
    best, rank = order, _rank(order, links)
    better = True
    while better:
        better = False
        for other in _list_neighbors(best):
            if budget[0] == 0:
                return best
            budget[0] -= 1
            found = _rank(other, links)
            if found < rank:
                best, rank, better = other, found, True
                break
    return best


def _list_neighbors(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    count = len(order)
    for begin in range(count):
        for end in range(begin + 2, count + 1):
            yield order[:begin] + order[begin:end][::-1] + order[end:]
    for place in range(count):
        rest = order[:place] + order[place + 1 :]
        for target in range(count):
            if target != place:
                yield (*rest[:target], order[place], *rest[target:])
