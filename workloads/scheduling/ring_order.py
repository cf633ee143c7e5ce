"""Order of hosts in a ring, so that the slowest transfer between neighbors is as short as possible.

All hosts of a ring all-reduce advance at the pace of the slowest transfer to a neighbor
(`core/cost_model/ring_all_reduce.py`). Links that several pairs share carry as many transfers at
the same time as the ring crosses them. The best order is a traveling salesman's problem with the
longest instead of the summed way (P. Gilmore and R. Gomory, Oper. Res. 12, 1964), and is improved
here from several beginnings by reversing parts of the ring and moving single hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, permutations

from laggard.core.cost_model.links import NetworkHop
from laggard.core.errors import InputError

_MOST_EXACT = 8
_MOST_TRIED = 4_000_000
"""Transfers that are compared, in all orders, before the best order so far is taken."""

_STARTS = 8


@dataclass(frozen=True)
class RingLinks:
    """Links between the hosts of a ring.

    This is plain Python, since a run reads its scenario before it enters a sandbox, and libraries
    for arrays start threads.

    Attributes:
        hops: from each host in a row to each in a column; None from a host to itself, [N, N].
        shared: number of the link that a pair shares with others, for pairs that share one.
        shared_mbps: rates of the shared links, [K].
        part_bytes: bytes that each host sends to the next at a time.
    """

    hops: Sequence[Sequence[NetworkHop | None]]
    shared: Mapping[tuple[int, int], int]
    shared_mbps: Sequence[float]
    part_bytes: float

    @cached_property
    def _alone_s(self) -> Sequence[Sequence[float]]:
        return [
            [0.0 if hop is None else hop.part_s(self.part_bytes) for hop in row]
            for row in self.hops
        ]

    def compute_parts_s(self, order: Sequence[int]) -> list[float]:
        """Return the seconds in which each host sends a part to the next one, [N]."""
        pairs = [*pairwise(order), (order[-1], order[0])]
        alone_s = self._alone_s
        parts_s = [alone_s[here][there] for here, there in pairs]
        if self.shared:
            users = Counter(self.shared[pair] for pair in pairs if pair in self.shared)
            for place, pair in enumerate(pairs):
                if pair in self.shared:
                    parts_s[place] = self.compute_shared_s(pair, users[self.shared[pair]])
        return parts_s

    def compute_shared_s(self, pair: tuple[int, int], users: int) -> float:
        """Return the seconds of a part between two hosts whose shared link has some users."""
        hop = self.hops[pair[0]][pair[1]]
        assert hop is not None
        rate_mbps = self.shared_mbps[self.shared[pair]] / users
        slowed = replace(hop, rate_mbps=min(hop.rate_mbps, rate_mbps))
        return slowed.part_s(self.part_bytes)


def order_ring(links: RingLinks) -> tuple[int, ...]:
    """Return the hosts in the order of a ring whose slowest transfer is short.

    Of orders with the same slowest transfer, that with the least sum of all transfers counts. The
    first host stays the first. The order as given is kept unless a better one is found. Up to eight
    hosts all orders are compared; among more, a better one may be missed.

    Raises:
        InputError: the links are no square.
    """
    count = len(links.hops)
    if any(len(row) != count for row in links.hops):
        raise InputError(f"links of a ring of {count} hosts: give a square of them")
    given = tuple(range(count))
    if count < 3:
        return given
    found: Iterable[tuple[int, ...]]
    if count <= _MOST_EXACT:
        found = ((0, *rest) for rest in permutations(range(1, count)))
    else:
        budget = [_MOST_TRIED // count]
        found = [_improve(start, links, budget) for start in _list_starts(links)]
    best: tuple[int, ...] = min((given, *found), key=lambda order: _rank(order, links))
    first = best.index(0)
    return best[first:] + best[:first]


def _rank(order: Sequence[int], links: RingLinks) -> tuple[float, float]:
    parts_s = links.compute_parts_s(order)
    # Rounding errors of equal sums must not decide.
    return (round(max(parts_s), 12), round(sum(parts_s), 9))


def _list_starts(links: RingLinks) -> Iterator[tuple[int, ...]]:
    """Yield the order as given, and from some hosts the way to the nearest one that is left."""
    count = len(links.hops)
    yield tuple(range(count))

    def part_s(here: int, there: int) -> float:
        pair = (here, there)
        if pair in links.shared:
            return links.compute_shared_s(pair, 1)
        return links.compute_parts_s(pair)[0]

    for first in range(_STARTS):
        order, left = [first], {*range(count)} - {first}
        while left:
            order.append(min(left, key=lambda each: (part_s(order[-1], each), each)))
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
