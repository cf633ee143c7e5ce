"""Numbers of devices of jobs, and jobs that share one, by how their speeds scale.

Deep-learning jobs rarely are twice as fast on twice the devices. So a device is worth most to a job
that has few (J. Han et al., *MARBLE: a multi-GPU aware job scheduler for deep learning on HPC
systems*, CCGRID 2020), and two jobs on one device may do more together than one of them alone.

For given pairs, the numbers of devices follow exactly by dynamic programming over the jobs. The
pairs are a matching: at a price of a device, sharing is worth the speeds of both less the price,
compared with what each is worth on devices of its own. A matching of the greatest worth is found
for many prices, and the best of all results counts, that without pairs included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError

Pair = tuple[int, int]
"""Two jobs, the smaller index first."""

_MOST_EXACT = 7
"""Number of jobs up to which all matchings are tried: 232 for seven."""

_PRICES = 24


@dataclass(frozen=True)
class DeviceShares:
    """Devices of jobs.

    Attributes:
        devices: number of devices of each job, [J]; 1 for both jobs of a pair, 0 for a job that
            waits.
        pairs: pairs of jobs that share one device.
        total: sum of the values of all jobs.
    """

    devices: tuple[int, ...]
    pairs: tuple[Pair, ...]
    total: float

    @property
    def used(self) -> int:
        """Return the number of devices in use."""
        return sum(self.devices) - len(self.pairs)


def build_values(curve: Mapping[int, float], count: int) -> FloatArray:
    """Return a job's speed on 0 to `count` devices, [count + 1], from some points of its curve.

    Between two points a job leaves devices idle, and beyond the last one as well.

    Raises:
        InputError: the curve has no points, or an impossible one.
    """
    if not curve or min(curve) < 1 or not all(0 <= each < np.inf for each in curve.values()):
        raise InputError(f"scaling curve {dict(curve)}: give speeds of one device or more")
    speeds = np.zeros(count + 1)
    for devices, speed in curve.items():
        if devices <= count:
            speeds[devices] = speed
    values: FloatArray = np.maximum.accumulate(speeds)
    return values


def is_superlinear(curve: Mapping[int, float]) -> bool:
    """Return whether more devices give a larger factor of speed than of devices anywhere."""
    points = [(devices, speed) for devices, speed in sorted(curve.items()) if speed > 0]
    # A per mille more is within what measurements differ.
    return any(b / m > 1.001 * a / n for (n, a), (m, b) in pairwise(points))


def share_devices(
    values: FloatArray, together: Mapping[Pair, tuple[float, float]], count: int
) -> DeviceShares:
    """Choose the devices of all jobs so that the sum of their values is greatest.

    Args:
        values: value of each job on 0 to `count` devices, [J, count + 1], such as its speed
            relative to that on the devices that it asked for.
        together: values of both jobs of a pair that shares one device.
        count: number of devices.

    Returns:
        The devices. They are never worth less than without sharing. With up to seven jobs they are
        the best there are.

    Raises:
        InputError: an array has another shape, or a pair is not one.
    """
    if count < 1 or values.ndim != 2 or values.shape[1] != count + 1:
        raise InputError(f"values {values.shape} of {count} devices: give a column for each number")
    for first, other in together:
        if not 0 <= first < other < len(values):
            raise InputError(f"pair {first}, {other}: give two of the {len(values)} jobs in order")
    if len(values) <= _MOST_EXACT:
        matchings = _list_matchings(sorted(together))
    else:
        matchings = _match_at_prices(values, together)
    return max(
        (_divide(values, together, count, pairs) for pairs in matchings),
        key=lambda each: each.total,
    )


def _divide(
    values: FloatArray,
    together: Mapping[Pair, tuple[float, float]],
    count: int,
    pairs: Sequence[Pair],
) -> DeviceShares:
    """Divide the devices between single jobs and given pairs; a pair that is not worth it waits."""
    paired = {job for pair in pairs for job in pair}
    single = [job for job in range(len(values)) if job not in paired]
    rows = [values[job] for job in single]
    for pair in pairs:
        row = np.full(count + 1, sum(together[pair]))
        row[0] = 0.0
        rows.append(row)
    chosen, total = _fill(rows, count)
    devices = [0] * len(values)
    for job, number in zip(single, chosen, strict=False):
        devices[job] = number
    kept = [pair for pair, number in zip(pairs, chosen[len(single) :], strict=True) if number]
    for pair in kept:
        for job in pair:
            devices[job] = 1
    return DeviceShares(tuple(devices), tuple(kept), total)


def _fill(rows: Sequence[FloatArray], count: int) -> tuple[list[int], float]:
    """Return the devices of each row with the greatest sum of values, and the sum."""
    best = np.zeros(count + 1)
    taken = np.zeros((len(rows), count + 1), dtype=np.int64)
    for number, row in enumerate(rows):
        # sums[n, k]: value of all rows so far on n devices, of which this one has k.
        n, k = np.indices((count + 1, count + 1))
        sums = np.where(k <= n, best[np.maximum(n - k, 0)] + row[k], -np.inf)
        taken[number] = sums.argmax(axis=1)
        best = sums.max(axis=1)
    left, devices = count, []
    for row_taken in taken[::-1]:
        devices.append(int(row_taken[left]))
        left -= devices[-1]
    return devices[::-1], float(best[-1])


def _list_matchings(pairs: Sequence[Pair]) -> Iterator[tuple[Pair, ...]]:
    """Yield all sets of pairs that have no job in common."""
    for size in range(len(pairs) + 1):
        found = False
        for chosen in combinations(pairs, size):
            jobs = [job for pair in chosen for job in pair]
            if len({*jobs}) == len(jobs):
                found = True
                yield chosen
        if not found:
            return


def _match_at_prices(
    values: FloatArray, together: Mapping[Pair, tuple[float, float]]
) -> Iterator[tuple[Pair, ...]]:
    """Yield the matching of the greatest worth at each of some prices of a device."""
    from networkx import Graph, max_weight_matching

    yield ()
    steps = np.diff(values, axis=1)
    most = float(max(steps.max(), *(sum(each) for each in together.values()), 0.0))
    numbers = np.arange(values.shape[1])
    for price in most * np.arange(_PRICES) / _PRICES:
        alone = (values - price * numbers).max(axis=1)
        graph = Graph()
        for (first, other), both in together.items():
            gain = sum(both) - price - alone[first] - alone[other]
            if gain > 0:
                graph.add_edge(first, other, weight=gain)
        yield tuple(sorted((min(pair), max(pair)) for pair in max_weight_matching(graph)))
