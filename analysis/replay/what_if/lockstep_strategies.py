"""Strategies whose ranks all take the same steps, and meet in some: all of them, or those of a
tier.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from laggard.analysis.replay.link_model import NetworkHop, compute_ring_finish_s
from laggard.analysis.replay.simulation.simulated_network import FRAMING_OVERHEAD
from laggard.analysis.replay.simulation.simulation_input import SimulationInput, SimulationResult
from laggard.analysis.tables.columns import FloatArray, IntArray

SyncRule = Callable[[int, FloatArray], FloatArray]
"""Of a step, and when each rank came, [W]: when each leaves."""


def simulate_all_reduce(sim_input: SimulationInput, every: int, after: int = 0) -> SimulationResult:
    """DDP (every 1), local SGD and DiLoCo: an all-reduce of all ranks in every so many steps, until
    `after` in each, and in the last.
    """
    last, count = sim_input.work.steps - 1, 0

    def synchronize(step: int, arrival: FloatArray) -> FloatArray:
        nonlocal count
        if step >= after and (step + 1) % every and step != last:
            return arrival
        count += 1
        return _finish_all_reduce(sim_input, count - 1, arrival)

    return _simulate_steps(sim_input, synchronize)


def simulate_hierarchical(
    sim_input: SimulationInput, tier_steps: int, wan_steps: int
) -> SimulationResult:
    """Hierarchical local SGD: the sum within each tier, that of the tiers' sums among their first
    ranks, and back.
    """
    last = sim_input.work.steps - 1
    members = [
        np.flatnonzero(np.array(sim_input.tiers) == tier) for tier in dict.fromkeys(sim_input.tiers)
    ]

    def synchronize(step: int, arrival: FloatArray) -> FloatArray:
        of_all = step == last or not (step + 1) % wan_steps
        if not of_all and (step + 1) % tier_steps:
            return arrival
        leave = arrival.copy()
        for ranks in members:
            leave[ranks] = _finish_ring(sim_input, ranks, leave[ranks])
        if of_all:
            leaders = np.array([ranks[0] for ranks in members])
            leave[leaders] = _finish_ring(sim_input, leaders, leave[leaders])
            for ranks in members:
                leave[ranks] = np.maximum(
                    leave[ranks],
                    leave[ranks[0]] + _compute_broadcast_s(sim_input, ranks, leave[ranks[0]]),
                )
        return leave

    return _simulate_steps(sim_input, synchronize)


def _simulate_steps(sim_input: SimulationInput, synchronize: SyncRule) -> SimulationResult:
    """Ranks compute, and meet; they stand for evaluations, which are outside the clock, until the
    last has come.
    """
    work, clock, outside_s = sim_input.work, np.zeros(sim_input.world), 0.0
    for step in range(work.steps):
        arrival = np.array(
            [
                each.compute_finish_s(clock[rank], step, work.rank_samples(step))
                for rank, each in enumerate(work.ranks)
            ]
        )
        clock = synchronize(step, arrival)
        if step in sim_input.pauses:
            outside_s += sim_input.pauses[step]
            clock = np.full(sim_input.world, clock.max() + sim_input.pauses[step])
    end_s = float(clock.max())
    return SimulationResult(end_s - outside_s, end_s, (work.steps,) * sim_input.world)


def _finish_all_reduce(sim_input: SimulationInput, count: int, arrival: FloatArray) -> FloatArray:
    """As such all-reduces went in the run; where it had none, as a ring goes over the links."""
    if sim_input.exchange is None:
        return _finish_ring(sim_input, np.arange(sim_input.world), arrival)
    latest_s = float(arrival.max())
    return np.maximum(
        sim_input.exchange.compute_finish_s(latest_s, count) + np.array(sim_input.exit_delay_s),
        latest_s,
    )


def _finish_ring(sim_input: SimulationInput, ranks: IntArray, arrival: FloatArray) -> FloatArray:
    """When they are through with an all-reduce over a ring of them, [n]; gloo's ranks send to the
    one before.
    """
    if len(ranks) < 2:
        return arrival
    names = [sim_input.hosts[int(rank)] for rank in ranks[::-1]]
    hops = [_cap_rate(hop) for hop in sim_input.network.ring(names, float(arrival.max()))]
    finish = compute_ring_finish_s(
        arrival[::-1][None], hops, sim_input.message_bytes * FRAMING_OVERHEAD
    )[0][::-1]
    through: FloatArray = finish
    return through


def _cap_rate(hop: NetworkHop) -> NetworkHop:
    return NetworkHop(hop.ends, min(hop.rate_mbps, 1e9), hop.rtt_ms)


def _compute_broadcast_s(sim_input: SimulationInput, ranks: IntArray, at_s: float) -> float:
    """From the first of them to all others by doubling: in each round who has the model sends it on
    to one that has not.
    """
    rounds = int(np.ceil(np.log2(len(ranks)))) if len(ranks) > 1 else 0
    hops = [
        sim_input.network.hop((sim_input.hosts[int(ranks[0])], sim_input.hosts[int(rank)]), at_s)
        for rank in ranks[1:]
    ]
    once_s = max(
        (
            sim_input.message_bytes * FRAMING_OVERHEAD * 8e-6 / hop.rate_mbps + hop.rtt_ms / 2e3
            for hop in hops
        ),
        default=0.0,
    )
    return rounds * once_s
