"""Orders of requests for several networks on one device, beside each other and the best order.

    python benchmarks/request_orders.py [REQUESTS]

Networks of one device differ in length by a factor of sixteen, as the networks of Sparse-DySta's
benchmark do, and every request is sparser or denser than the mean of its network: its blocks take a
time of their own, and the blocks of one request are alike. The first table has eight requests at a
time, for which all orders are tried: a device always goes on with the first of the order that has
arrived. The second one has ten thousand.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from laggard.core.serving.arrivals import draw_arrivals
from laggard.core.serving.outcome import ServingOutcome, summarize_requests
from laggard.core.serving.request_order import REQUEST_ORDERS, RequestOrderName
from laggard.core.serving.served_network import ServedNetwork
from laggard.core.simulation.network import SimulatedNetwork
from laggard.core.simulation.serving import ServingDevice, ServingSimulation, SimulatedRequest

LENGTHS_S = (0.01, 0.02, 0.04, 0.08, 0.16)
BLOCKS = 10
SMALL_CASES, SMALL_REQUESTS = 100, 8
LOADS = (0.6, 0.8, 0.95)
DEADLINE_LENGTHS = 10.0
"""Deadline of a request as a multiple of its network's length; the paper's default."""

REQUEST_SPREAD, BLOCK_SPREAD = 0.35, 0.1
"""Standard deviations of the logarithm of a request's pace, and of each of its blocks."""


def draw_requests(
    count: int, load: float, seed: int, spread: float = REQUEST_SPREAD
) -> list[SimulatedRequest]:
    """Draw requests for networks of all lengths, each as often as the others."""
    rng = np.random.default_rng(seed)
    rate = load / statistics.mean(LENGTHS_S)
    return [
        SimulatedRequest(
            "device",
            network := int(rng.integers(len(LENGTHS_S))),
            arrived_s,
            DEADLINE_LENGTHS * LENGTHS_S[network],
            tuple(
                np.exp(
                    rng.normal(0, spread)
                    + rng.normal(0, BLOCK_SPREAD if spread else 0, BLOCKS)
                    - (spread**2 + (BLOCK_SPREAD**2 if spread else 0)) / 2
                ).tolist()
            ),
        )
        for arrived_s in draw_arrivals(rate, count, (seed, 1))
    ]


def serve(order: RequestOrderName, requests: Sequence[SimulatedRequest]) -> ServingOutcome:
    """Return the figures of all requests under an order."""
    networks = tuple(
        ServedNetwork(str(number), (length / BLOCKS,) * BLOCKS)
        for number, length in enumerate(LENGTHS_S)
    )
    device = ServingDevice("device", networks, order, most_waiting=len(requests))
    return summarize_requests(ServingSimulation([device], SimulatedNetwork({})).run(requests))


def find_best_antt(requests: Sequence[SimulatedRequest]) -> float:
    """Return the least mean slowdown over all orders, with the real seconds of all blocks known."""
    blocks = [[LENGTHS_S[each.network] / BLOCKS * part for part in each.pace] for each in requests]
    lengths = [sum(each) for each in blocks]
    arrivals = [each.arrived_s for each in requests]
    return min(
        _compute_antt(order, arrivals, blocks, lengths)
        for order in permutations(range(len(blocks)))
    )


def _compute_antt(
    order: Sequence[int],
    arrivals: Sequence[float],
    blocks: Sequence[Sequence[float]],
    lengths: Sequence[float],
) -> float:
    """Return the mean slowdown if the first of an order that has arrived computes its next block."""
    now_s, total, left = 0.0, 0.0, list(order)
    done = [0] * len(blocks)
    while left:
        chosen = next((each for each in left if arrivals[each] <= now_s), None)
        if chosen is None:
            now_s = min(arrivals[each] for each in left)
            continue
        now_s += blocks[chosen][done[chosen]]
        done[chosen] += 1
        if done[chosen] == BLOCKS:
            left.remove(chosen)
            total += (now_s - arrivals[chosen]) / lengths[chosen]
    return total / len(blocks)


def compare_with_best() -> None:
    """Print how much longer requests take than in the best of all orders."""
    excess: dict[str, list[float]] = {order: [] for order in REQUEST_ORDERS}
    for seed in range(SMALL_CASES):
        requests = draw_requests(SMALL_REQUESTS, load=2.0, seed=seed)
        best = find_best_antt(requests)
        for order in REQUEST_ORDERS:
            antt = serve(order, requests).antt
            assert antt is not None
            excess[order].append(antt / best - 1)
    print(f"| order | mean of {SMALL_CASES} cases | median | largest | within 5 % |")
    print("|---|---|---|---|---|")
    for name, values in excess.items():
        near = sum(value <= 0.05 for value in values)
        print(
            f"| {name} | {statistics.mean(values):+.1%} | {statistics.median(values):+.1%} |"
            f" {max(values):+.1%} | {near} |",
            flush=True,
        )


def compare_orders(count: int) -> None:
    """Print the figures of every order at every load."""
    print("\n| load | order | ANTT | violations | 99th percentile | throughput |")
    print("|---|---|---|---|---|---|")
    for load in LOADS:
        requests = draw_requests(count, load, seed=7)
        for order in REQUEST_ORDERS:
            found = serve(order, requests)
            print(
                f"| {load:.0%} | {order} | {found.antt:.2f} | {found.violations:.1%} |"
                f" {found.percentiles_s[99]:.2f} s | {found.throughput:.1f}/s |",
                flush=True,
            )


def main() -> None:
    """Print both tables."""
    compare_with_best()
    compare_orders(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)


if __name__ == "__main__":
    main()
