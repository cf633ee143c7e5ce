"""Devices of a job, and their order in a ring, so that the slowest link of the ring is fast.

A ring all-reduce advances at the pace of its slowest link. So the best devices for a job are those
on which a ring exists whose slowest link is fastest (M. Amaral et al., *Topology-aware GPU
scheduling for learning workloads in cloud environments*, SC 2017). For a given least rate this asks
for a cycle of a certain length in the graph of the links that are as fast; the least rate is found
by bisection over the rates that occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError

_MOST_VISITS = 5_000
"""Steps of one search for a cycle, after which it counts as not found."""

_RESTARTS = 4
_LEVELS = 48
"""Rates that are tried one after another before bisection."""


@dataclass(frozen=True)
class RingPlacement:
    """Devices of a ring.

    Attributes:
        devices: indices of the devices in the order of the ring.
        rate: rate of its slowest link, in the unit of the topology; infinite for one device.
    """

    devices: tuple[int, ...]
    rate: float


def place_ring(
    rates: FloatArray, size: int, free: Sequence[int] | None = None, seed: int = 1
) -> RingPlacement:
    """Choose the devices and the order of a ring whose slowest link is as fast as possible.

    Args:
        rates: rate from each device to each other, [N, N]; 0 if there is no link. A ring uses a
            link in both directions at the rate of the slower one.
        size: devices of the ring.
        free: devices that may be used; all if None.
        seed: seed of the order in which cycles are tried.

    Returns:
        The ring. It is the best one if the search for a better one ended, as it does for a dozen
        devices; among very many devices it may miss one.

    Raises:
        InputError: the topology is no square of rates, or there are too few connected devices.
    """
    if rates.ndim != 2 or rates.shape[0] != rates.shape[1] or not (rates >= 0).all():
        raise InputError(
            f"a topology of {' x '.join(map(str, rates.shape))} rates: it must be a square of rates"
            " that are at least 0"
        )
    able = np.arange(len(rates)) if free is None else np.array(sorted({*free}), dtype=np.int64)
    if not 1 <= size <= len(able):
        raise InputError(f"{size} of {len(able)} free devices: give from 1 to {len(able)}")
    if size == 1:
        return RingPlacement((int(able[0]),), float("inf"))
    both = np.minimum(rates, rates.T)[np.ix_(able, able)].astype(np.float64)
    np.fill_diagonal(both, 0.0)
    levels = np.unique(both[both > 0])
    rng = np.random.default_rng(seed)
    best, low, high = None, 0, len(levels) - 1
    # From fast to slow: a sparse graph is searched completely, and a dense one has many cycles. The
    # search is hard between them, where bisection alone would stop.
    tried = np.linspace(0, len(levels) - 1, _LEVELS).astype(int) if len(levels) else ()
    for number in np.unique(tried)[::-1].astype(int):
        best = _find_cycle(both >= levels[number], size, rng)
        if best is not None:
            low = int(number) + 1
            break
        high = int(number) - 1
    else:
        low = high + 1
    high = min(high + 2 * len(levels) // _LEVELS, len(levels) - 1)
    while low <= high:
        middle = (low + high) // 2
        found = _find_cycle(both >= levels[middle], size, rng)
        if found is None:
            high = middle - 1
        else:
            best, low = found, middle + 1
    if best is None:
        raise InputError(
            f"no ring of {size} devices: the links do not connect so many — use fewer devices"
        )
    rate = min(both[here, there] for here, there in zip(best, (*best[1:], best[0]), strict=True))
    return RingPlacement(tuple(int(able[each]) for each in best), float(rate))


def _find_cycle(linked: np.ndarray, size: int, rng: np.random.Generator) -> tuple[int, ...] | None:
    """Return a cycle of `size` nodes of a graph, [N, N] of bool; None if none was found."""
    neighbors = [np.flatnonzero(row) for row in linked]
    if size == 2:
        first = next((each for each, row in enumerate(neighbors) if len(row)), None)
        return None if first is None else (first, int(neighbors[first][0]))
    for restart in range(_RESTARTS):
        order = rng.permutation(len(linked)) if restart else np.arange(len(linked))
        cycle, complete = _search(neighbors, size, order.tolist())
        if cycle is not None or complete:
            return cycle
    return None


def _search(
    neighbors: Sequence[np.ndarray], size: int, order: Sequence[int]
) -> tuple[tuple[int, ...] | None, bool]:
    """Search depth first, and return a cycle and whether all paths were tried.

    A path goes on to the neighbor with the fewest free neighbors first, which leaves the others for
    later. Nodes that were the first of all their paths are left out of later ones.
    """
    place = {node: number for number, node in enumerate(order)}
    excluded: set[int] = set()
    visits = 0
    for start in order:
        path, used = [start], {start} | excluded
        closing = {*neighbors[start].tolist()} - excluded
        choices = [_rank(neighbors, start, used, place)]
        while path:
            visits += 1
            if visits > _MOST_VISITS:
                return None, False
            if len(path) == size:
                if path[-1] in closing:
                    return tuple(path), True
                used.discard(path.pop())
                choices.pop()
                continue
            if not choices[-1]:
                used.discard(path.pop())
                choices.pop()
                continue
            node = choices[-1].pop(0)
            path.append(node)
            used.add(node)
            choices.append(_rank(neighbors, node, used, place))
        excluded.add(start)
    return None, True


def _rank(
    neighbors: Sequence[np.ndarray], node: int, used: set[int], place: dict[int, int]
) -> list[int]:
    free = [each for each in neighbors[node].tolist() if each not in used]
    return sorted(
        free,
        key=lambda each: (
            sum(other not in used for other in neighbors[each].tolist()),
            place[each],
        ),
    )
