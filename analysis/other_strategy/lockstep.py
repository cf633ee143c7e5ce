"""Strategies whose ranks all take the same steps, and meet in some: all of them, or those of a
tier.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from laggard.analysis.columns import FloatArray, IntArray
from laggard.analysis.link_change import Hop, ring_finish_s
from laggard.analysis.other_strategy.network import FRAMED
from laggard.analysis.other_strategy.scene import Played, Scene

Meeting = Callable[[int, FloatArray], FloatArray]
"""Of a step, and when each rank came, [W]: when each leaves."""


def meet_every(scene: Scene, every: int, after: int = 0) -> Played:
    """DDP (every 1), local SGD and DiLoCo: an all-reduce of all ranks in every so many steps, until
    `after` in each, and in the last.
    """
    last, count = scene.work.steps - 1, 0

    def meet(step: int, arrival: FloatArray) -> FloatArray:
        nonlocal count
        if step >= after and (step + 1) % every and step != last:
            return arrival
        count += 1
        return _all_reduced(scene, count - 1, arrival)

    return _play(scene, meet)


def meet_in_tiers(scene: Scene, tier_steps: int, wan_steps: int) -> Played:
    """Hierarchical local SGD: the sum within each tier, that of the tiers' sums among their first
    ranks, and back.
    """
    last = scene.work.steps - 1
    members = [np.flatnonzero(np.array(scene.tiers) == tier) for tier in dict.fromkeys(scene.tiers)]

    def meet(step: int, arrival: FloatArray) -> FloatArray:
        of_all = step == last or not (step + 1) % wan_steps
        if not of_all and (step + 1) % tier_steps:
            return arrival
        leave = arrival.copy()
        for ranks in members:
            leave[ranks] = _ring(scene, ranks, leave[ranks])
        if of_all:
            leaders = np.array([ranks[0] for ranks in members])
            leave[leaders] = _ring(scene, leaders, leave[leaders])
            for ranks in members:
                leave[ranks] = np.maximum(
                    leave[ranks], leave[ranks[0]] + _broadcast_s(scene, ranks, leave[ranks[0]])
                )
        return leave

    return _play(scene, meet)


def _play(scene: Scene, meet: Meeting) -> Played:
    """Ranks compute, and meet; they stand for evaluations, which are outside the clock, until the
    last has come.
    """
    work, clock, outside_s = scene.work, np.zeros(scene.world), 0.0
    for step in range(work.steps):
        arrival = np.array(
            [each.done(clock[rank], step, work.share(step)) for rank, each in enumerate(work.ranks)]
        )
        clock = meet(step, arrival)
        if step in scene.pauses:
            outside_s += scene.pauses[step]
            clock = np.full(scene.world, clock.max() + scene.pauses[step])
    end_s = float(clock.max())
    return Played(end_s - outside_s, end_s, (work.steps,) * scene.world)


def _all_reduced(scene: Scene, count: int, arrival: FloatArray) -> FloatArray:
    """As such all-reduces went in the run; where it had none, as a ring goes over the links."""
    if scene.exchange is None:
        return _ring(scene, np.arange(scene.world), arrival)
    latest_s = float(arrival.max())
    return np.maximum(scene.exchange.done(latest_s, count) + np.array(scene.leaves_s), latest_s)


def _ring(scene: Scene, ranks: IntArray, arrival: FloatArray) -> FloatArray:
    """When they are through with an all-reduce over a ring of them, [n]; gloo's ranks send to the
    one before.
    """
    if len(ranks) < 2:
        return arrival
    names = [scene.hosts[int(rank)] for rank in ranks[::-1]]
    hops = [_finite(hop) for hop in scene.network.ring(names, float(arrival.max()))]
    finish = ring_finish_s(arrival[::-1][None], hops, scene.message_bytes * FRAMED)[0][::-1]
    through: FloatArray = finish
    return through


def _finite(hop: Hop) -> Hop:
    return Hop(hop.ends, min(hop.rate_mbps, 1e9), hop.rtt_ms)


def _broadcast_s(scene: Scene, ranks: IntArray, at_s: float) -> float:
    """From the first of them to all others by doubling: in each round who has the model sends it on
    to one that has not.
    """
    rounds = int(np.ceil(np.log2(len(ranks)))) if len(ranks) > 1 else 0
    hops = [
        scene.network.hop((scene.hosts[int(ranks[0])], scene.hosts[int(rank)]), at_s)
        for rank in ranks[1:]
    ]
    once_s = max(
        (scene.message_bytes * FRAMED * 8e-6 / hop.rate_mbps + hop.rtt_ms / 2e3 for hop in hops),
        default=0.0,
    )
    return rounds * once_s
