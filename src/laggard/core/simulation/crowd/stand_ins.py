"""Workers of which some are played event by event, each of them for several.

It is for strategies whose workers wait for others in ways that arrays do not follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from laggard.core.simulation.crowd.workers import CrowdResult, require_steps
from laggard.core.simulation.resizing import resize_tiers
from laggard.core.simulation.strategies.catalog import AlternativeStrategy
from laggard.core.simulation.training import SimulationInput

MAX_PLAYED = 4096
"""Largest number of workers that are played."""
_MAX_STEPS = 1_000_000
"""Largest number of steps of all played workers together, unless they are very few."""
_FEWEST = 64
_DRAWN = 512
"""Drawn durations of a worker, which are repeated."""


def simulate_stand_ins(
    strategy: AlternativeStrategy,
    sim_input: SimulationInput,
    workers: Mapping[str, int],
    spread: float,
    rng: np.random.Generator,
    most: int = MAX_PLAYED,
) -> CrowdResult:
    """Simulate a training with other numbers of workers.

    Args:
        strategy: its strategy.
        sim_input: training of a few workers, whose goal is a number of steps of all.
        workers: number of workers by tier.
        spread: standard deviation of the logarithm of a step's duration.
        rng: source of the durations.
        most: largest number of workers that are played.

    Returns:
        The result, with an estimated error if only a part of the workers was played. A part of the
        time in which a worker computes is known for each rank of `sim_input`.
    """
    total, steps = sum(workers.values()), sim_input.work.steps
    require_steps(steps)
    played = min(most, max(_FEWEST, _MAX_STEPS // steps))
    if total <= played:
        return _play(strategy, sim_input, workers, spread, rng, 1)
    fewer, more = (
        _play(strategy, sim_input, workers, spread, rng, math.ceil(total / count))
        for count in (played // 2, played)
    )
    error = abs(fewer.makespan_s / more.makespan_s - 1)
    return CrowdResult(more.makespan_s, steps * total, more.computed_share, relative_error=error)


def _play(
    strategy: AlternativeStrategy,
    sim_input: SimulationInput,
    workers: Mapping[str, int],
    spread: float,
    rng: np.random.Generator,
    each_for: int,
) -> CrowdResult:
    """Play one worker for every `each_for` of them, on links that so many share."""
    counts = {tier: max(1, round(count / each_for)) for tier, count in workers.items()}
    resized = resize_tiers(sim_input, counts)
    bottlenecks = tuple(
        replace(each, rate_mbps=each.rate_mbps / each_for) for each in resized.network.bottlenecks
    )
    ranks = tuple(
        replace(each, jitter=np.exp(spread * rng.standard_normal(_DRAWN)), usual_from=0)
        for each in resized.work.ranks
    )
    found = strategy.simulate(
        replace(
            resized,
            work=replace(resized.work, ranks=ranks),
            network=replace(resized.network, bottlenecks=bottlenecks),
        )
    )
    computed_s = np.zeros(sim_input.world)
    members = np.zeros(sim_input.world)
    like = {host: rank for rank, host in enumerate(sim_input.hosts)}
    for host, taken, work in zip(resized.hosts, found.steps, ranks, strict=True):
        rank = like[host.partition(" copy ")[0]]
        computed_s[rank] += taken * work.fixed_s
        members[rank] += 1
    shares = computed_s / np.maximum(members, 1) / found.makespan_s
    return CrowdResult(found.makespan_s, round(sum(found.steps)), np.minimum(shares, 1.0))
