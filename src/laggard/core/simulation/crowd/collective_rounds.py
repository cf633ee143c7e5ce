"""Workers in lockstep that average with collectives, with arrays over workers.

A ring all-reduce has 2 (n - 1) parts, one after another, at the pace of the slowest link. With very
many workers it starts when the last one has arrived: others get only a few parts ahead
(`core/cost_model/ring_all_reduce.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.demand import require_quantity
from laggard.core.cost_model.links import NetworkHop
from laggard.core.rules.synchronization import PeriodicSynchronization
from laggard.core.simulation.crowd.workers import (
    CONSTANT,
    Crowd,
    CrowdResult,
    CrowdSteps,
    Slowness,
    require_steps,
)


@dataclass(frozen=True)
class RingParts:
    """Parts of a ring all-reduce.

    Attributes:
        workers: number of workers in the ring.
        part_s: seconds of a part over the slowest link, with its handling.
        start_s: seconds until the first part moves, of the sums and of their distribution.
        slowness: slowness of all parts, if the rates of links change.
    """

    workers: int
    part_s: float
    start_s: float = 0.0
    slowness: Slowness = CONSTANT

    def __post_init__(self) -> None:
        require_quantity("part_s", self.part_s, "give the seconds of a part")
        require_quantity("start_s", self.start_s, "give 0 for none")

    @classmethod
    def over(
        cls, workers: int, hop: NetworkHop, payload_bytes: float, handling_s: float = 0.0
    ) -> RingParts:
        """Return the parts of a ring of equal links.

        Args:
            workers: number of workers.
            hop: a link of the ring, the slowest one if they differ.
            payload_bytes: size of the reduced data on the wire.
            handling_s: processor seconds of a host for every part.
        """
        part_bytes = payload_bytes / workers
        half_s = part_bytes / 2 * 8e-6 / hop.rate_mbps
        part_s = max(hop.part_s(part_bytes), handling_s)
        return cls(workers, part_s, 2 * min(half_s, hop.rtt_ms / 1e3))

    @property
    def seconds(self) -> float:
        """Return the seconds of the all-reduce after the last arrival."""
        return 2 * (self.workers - 1) * self.part_s + self.start_s if self.workers > 1 else 0.0

    def end_s(self, arrived_s: float) -> float:
        """Return the end of the all-reduce, if the last worker arrives at a time."""
        return self.slowness.end_s(arrived_s, self.seconds)


Synchronize = Callable[[FloatArray], FloatArray]
"""Function of the arrivals of all workers that returns the times at which they leave, [workers]."""


def simulate_all_reduce_rounds(
    crowd: Crowd,
    ring: RingParts,
    rule: PeriodicSynchronization,
    steps: int,
    rng: np.random.Generator,
) -> CrowdResult:
    """Simulate DDP, local SGD or DiLoCo.

    Args:
        crowd: the workers.
        ring: all-reduce of all workers.
        rule: steps that synchronize.
        steps: number of steps; the last one synchronizes.
        rng: source of the durations of steps.

    Raises:
        InputError: there is no step.

    Examples:
        >>> import numpy as np
        >>> from laggard.core.simulation.crowd.workers import Crowd, CrowdClass, require_steps
        >>> crowd = Crowd((CrowdClass("edge", 99, 1.0), CrowdClass("slow", 1, 2.0)))
        >>> rule, rng = PeriodicSynchronization(5), np.random.default_rng(1)
        >>> simulate_all_reduce_rounds(crowd, RingParts(100, 0.01), rule, 10, rng).makespan_s
        23.96
    """

    def synchronize(arrivals_s: FloatArray) -> FloatArray:
        return np.full_like(arrivals_s, ring.end_s(float(arrivals_s.max())))

    return _simulate(crowd, steps, rng, lambda step: synchronize if rule.is_due(step) else None)


def simulate_tier_rounds(
    crowd: Crowd,
    tiers: tuple[RingParts, ...],
    leaders: RingParts,
    broadcast_s: float,
    rules: tuple[PeriodicSynchronization, PeriodicSynchronization],
    steps: int,
    rng: np.random.Generator,
) -> CrowdResult:
    """Simulate hierarchical local SGD, in which every class of workers is a tier.

    Args:
        crowd: the workers.
        tiers: all-reduce of every tier.
        leaders: all-reduce of one worker of each tier.
        broadcast_s: seconds of a message from such a worker to another of its tier; every round of
            a broadcast takes as long.
        rules: steps in which tiers synchronize, and those in which all do.
        steps: number of steps; all synchronize in the last one.
        rng: source of the durations of steps.

    Raises:
        InputError: there is no step.
    """
    within, across = rules
    ranks = crowd.slices()

    def of_tiers(arrivals_s: FloatArray) -> FloatArray:
        leaves_s = arrivals_s.copy()
        for own, ring in zip(ranks, tiers, strict=True):
            leaves_s[own] = ring.end_s(float(arrivals_s[own].max()))
        return leaves_s

    def of_all(arrivals_s: FloatArray) -> FloatArray:
        leaves_s = of_tiers(arrivals_s)
        met_s = leaders.end_s(max(float(leaves_s[own.start]) for own in ranks))
        for own, each in zip(ranks, crowd.classes, strict=True):
            leaves_s[own] = met_s + math.ceil(math.log2(each.workers)) * broadcast_s
        return leaves_s

    def choose(step: int) -> Synchronize | None:
        if across.is_due(step):
            return of_all
        return of_tiers if within.is_due(step) else None

    return _simulate(crowd, steps, rng, choose)


def _simulate(
    crowd: Crowd,
    steps: int,
    rng: np.random.Generator,
    choose: Callable[[int], Synchronize | None],
) -> CrowdResult:
    require_steps(steps)
    taken, clock_s = CrowdSteps(crowd, rng), np.zeros(crowd.workers)
    for step in range(steps):
        clock_s = taken.finish_s(clock_s)
        synchronize = choose(step)
        if synchronize is not None:
            clock_s = synchronize(clock_s)
    makespan_s = float(clock_s.max())
    shares = taken.computed_s / [each.workers for each in crowd.classes] / makespan_s
    return CrowdResult(makespan_s, steps * crowd.workers, shares)
