"""Workers that never wait for each other, and those that wait for a server only.

Workers without a server are a sum of speeds. With a server they are a closed queue, which is played
worker by worker. For more workers than are played, each of the played ones stands for several, and
the server takes as many times longer for it.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from laggard.core.simulation.crowd.server_rounds import CrowdServer
from laggard.core.simulation.crowd.workers import (
    Crowd,
    CrowdClass,
    CrowdResult,
    require_steps,
    stretch,
)

MAX_PLAYED = 20_000
"""Largest number of workers that are played one by one."""


def simulate_alone(crowd: Crowd, steps: int) -> CrowdResult:
    """Simulate workers whose steps wait for nobody, such as those of `ad_psgd`.

    The training ends when all together have taken as many steps as `steps` of each.

    Args:
        crowd: the workers.
        steps: mean number of steps of a worker.

    Raises:
        InputError: there is no step.

    Examples:
        >>> from laggard.core.simulation.crowd.workers import Crowd, CrowdClass, require_steps
        >>> crowd = Crowd((CrowdClass("fast", 10, 1.0), CrowdClass("slow", 10, 3.0)))
        >>> simulate_alone(crowd, 20).makespan_s
        30.0
    """
    from scipy.optimize import brentq

    require_steps(steps)
    wanted = float(steps * crowd.workers)

    def count(time_s: float) -> float:
        return sum(each.workers * _count_steps(each, time_s) for each in crowd.classes) - wanted

    slowest = max(crowd.classes, key=lambda each: _mean_step_s(each) * max(each.factors))
    latest_s = steps * _mean_step_s(slowest) * max(slowest.factors) + max(
        [0.0, *(edge for each in crowd.classes for edge in each.edges_s)]
    )
    makespan_s = float(brentq(count, 0.0, 2 * latest_s, rtol=1e-12))
    return CrowdResult(makespan_s, round(wanted), np.ones(len(crowd.classes)))


def _mean_step_s(workers: CrowdClass) -> float:
    """Return the mean of a lognormal duration, whose median is the usual one."""
    return workers.step_s * math.exp(workers.spread**2 / 2)


def _count_steps(workers: CrowdClass, time_s: float) -> float:
    """Return the mean number of steps that a worker has taken at a time."""
    moments = np.array([0.0, *workers.edges_s, math.inf])
    ends = np.minimum(moments[1:], time_s)
    parts_s = np.maximum(ends - moments[:-1], 0.0)
    return float((parts_s / np.array(workers.factors)).sum()) / _mean_step_s(workers)


def simulate_server_queue(
    crowd: Crowd, server: CrowdServer, steps: int, rng: np.random.Generator
) -> CrowdResult:
    """Simulate a training with `asynchronous`: every gradient counts as soon as it is served.

    Args:
        crowd: the workers.
        server: the server.
        steps: mean number of steps of a worker.
        rng: source of the durations of steps.

    Returns:
        The result, with an estimated error if only a part of the workers was played.

    Raises:
        InputError: there is no step.
    """
    require_steps(steps)
    if crowd.workers <= MAX_PLAYED:
        return _play(crowd, server, steps, rng, 1)
    # Twice as many stand-ins halve the difference to the whole crowd, so that the difference
    # between the two is the error that is left.
    fewer, more = (
        _play(crowd, server, steps, rng, math.ceil(crowd.workers / played))
        for played in (MAX_PLAYED // 2, MAX_PLAYED)
    )
    error = abs(fewer.makespan_s / more.makespan_s - 1)
    return CrowdResult(
        more.makespan_s, steps * crowd.workers, more.computed_share, relative_error=error
    )


def _play(
    crowd: Crowd, server: CrowdServer, steps: int, rng: np.random.Generator, each_for: int
) -> CrowdResult:
    """Play one worker for every `each_for` of them."""
    classes = [
        (each, max(1, round(each.workers / each_for)), place)
        for place, each in enumerate(crowd.classes)
    ]
    service_s = each_for * max(server.packing_s, server.in_s)
    answer_s = each_for * (server.applying_s + max(server.packing_s, server.out_s))
    computed_s = np.zeros(len(classes))
    requests: list[tuple[float, int, int]] = []

    def begin(place: int, worker: int, begin_s: float) -> None:
        workers = crowd.classes[place]
        duration_s = workers.step_s * math.exp(workers.spread * rng.standard_normal())
        if workers.edges_s:
            at = np.array([begin_s])
            end_s = float(stretch(at, duration_s, workers.edges_s, workers.factors)[0])
        else:
            end_s = begin_s + duration_s * workers.factors[0]
        computed_s[place] += end_s - begin_s
        heapq.heappush(requests, (end_s + workers.packing_s + workers.up_s, worker, place))

    number = 0
    for _, count, place in classes:
        for _ in range(count):
            begin(place, number, 0.0)
            number += 1
    free_s, learned_s, left = 0.0, 0.0, steps * number
    while left:
        arrival_s, worker, place = heapq.heappop(requests)
        learned_s = max(free_s, arrival_s) + service_s
        free_s = learned_s + answer_s
        left -= 1
        workers = crowd.classes[place]
        begin(place, worker, free_s + workers.down_s + workers.packing_s)
    shares = computed_s / [count for _, count, _ in classes] / learned_s
    return CrowdResult(learned_s, steps * crowd.workers, np.minimum(shares, 1.0))
