"""Strategies whose ranks all take the same steps and synchronize in some of them.

All ranks synchronize, or the ranks of a tier.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from laggard.core.cost_model.arrays import FloatArray, IntArray
from laggard.core.cost_model.collectives import compute_broadcast_s
from laggard.core.cost_model.links import NetworkHop
from laggard.core.cost_model.ring_all_reduce import compute_ring_finish_s
from laggard.core.rules.synchronization import PeriodicSynchronization, group_ranks_by_tier
from laggard.core.simulation.network import FRAMING_OVERHEAD
from laggard.core.simulation.training import SimulationInput, SimulationResult

SyncRule = Callable[[int, FloatArray], FloatArray]
"""Function of a step and the arrival of each rank, [W], that returns the time at which each
leaves."""


def simulate_all_reduce(sim_input: SimulationInput, every: int, after: int = 0) -> SimulationResult:
    """Simulate DDP (`every` 1), local SGD or DiLoCo: all-reduces of all ranks in some steps.

    Ranks synchronize in every step before `after`, then in every `every`-th step, and in the last
    step.
    """
    rule, count = PeriodicSynchronization(every, sim_input.work.steps - 1, after), 0
    broadcasts_s = _compute_step_broadcasts_s(sim_input)

    def synchronize(step: int, arrival: FloatArray) -> FloatArray:
        nonlocal count
        if not rule.is_due(step):
            return arrival
        count += 1
        return _finish_all_reduce(sim_input, count - 1, arrival) + broadcasts_s

    return _simulate_steps(sim_input, synchronize)


def _compute_step_broadcasts_s(sim_input: SimulationInput) -> float:
    """Return the seconds of the broadcasts that follow an all-reduce."""
    if not sim_input.step_broadcasts or sim_input.world < 2:
        return 0.0
    hosts = sim_input.hosts
    hops = [sim_input.network.hop((hosts[0], other)) for other in hosts[1:]]
    part_s = sim_input.handling.ring_part_s / min(sim_input.shares_of_core)
    rounds = math.ceil(math.log2(len(hosts)))
    return sum(
        compute_broadcast_s(hops, size * FRAMING_OVERHEAD) + rounds * part_s
        for size in sim_input.step_broadcasts
    )


def simulate_hierarchical(
    sim_input: SimulationInput, tier_steps: int, wan_steps: int
) -> SimulationResult:
    """Simulate hierarchical local SGD.

    Ranks reduce within each tier, the first ranks of the tiers reduce the tiers' sums, and each of
    them broadcasts the result in its tier.
    """
    within = PeriodicSynchronization(tier_steps)
    across = PeriodicSynchronization(wan_steps, sim_input.work.steps - 1)
    members = [np.array(ranks) for ranks in group_ranks_by_tier(sim_input.tiers)]

    def synchronize(step: int, arrival: FloatArray) -> FloatArray:
        of_all = across.is_due(step)
        if not of_all and not within.is_due(step):
            return arrival
        leave = arrival.copy()
        for ranks in members:
            leave[ranks] = _finish_ring(sim_input, ranks, leave[ranks])
        if of_all:
            leaders = np.array([ranks[0] for ranks in members])
            leave[leaders] = _finish_ring(sim_input, leaders, leave[leaders])
            # A rank leaves when the broadcast is over, but not before its tier's own all-reduce.
            for ranks in members:
                at_s = float(leave[ranks[0]])
                hosts = [sim_input.hosts[int(rank)] for rank in ranks]
                hops = [sim_input.network.hop((hosts[0], other), at_s) for other in hosts[1:]]
                broadcast_s = compute_broadcast_s(hops, sim_input.wire_bytes)
                leave[ranks] = np.maximum(leave[ranks], at_s + broadcast_s)
        return leave

    return _simulate_steps(sim_input, synchronize)


def _simulate_steps(sim_input: SimulationInput, synchronize: SyncRule) -> SimulationResult:
    """Simulate ranks that compute a step and then synchronize.

    Evaluations are outside the clock: all ranks wait from the last arrival until the evaluation
    ends.
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
    """Return the time at which each rank finishes an all-reduce, [W].

    The durations are those of the run's own all-reduces, or of a ring over the links if it had
    none.
    """
    if sim_input.exchange is None:
        return _finish_ring(sim_input, np.arange(sim_input.world), arrival)
    latest_s = float(arrival.max())
    return np.maximum(
        sim_input.exchange.compute_finish_s(latest_s, count) + np.array(sim_input.exit_delay_s),
        latest_s,
    )


def _finish_ring(sim_input: SimulationInput, ranks: IntArray, arrival: FloatArray) -> FloatArray:
    """Return the times at which ranks finish an all-reduce over a ring of them, [n].

    With gloo, each rank sends to the one before it.
    """
    if len(ranks) < 2:
        return arrival
    # Reversed, because `compute_ring_finish_s` expects each host to send to the next.
    names = [sim_input.hosts[int(rank)] for rank in ranks[::-1]]
    hops = [_cap_rate(hop) for hop in sim_input.network.ring(names, float(arrival.max()))]
    part_s = sim_input.handling.ring_part_s
    handling_s = part_s / np.array([sim_input.shares_of_core[int(rank)] for rank in ranks[::-1]])
    finish = compute_ring_finish_s(arrival[::-1][None], hops, sim_input.wire_bytes, handling_s)
    return finish[0, ::-1]


def _cap_rate(hop: NetworkHop) -> NetworkHop:
    """Return the hop with a finite rate of at most 10^9 Mbit/s."""
    return NetworkHop(hop.ends, min(hop.rate_mbps, 1e9), hop.rtt_ms)
