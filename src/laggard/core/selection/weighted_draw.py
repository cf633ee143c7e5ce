"""Drawing with unequal probabilities and without replacement."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence


def draw_weighted(weights: Sequence[float], count: int, rng: random.Random) -> tuple[int, ...]:
    """Draw positions one after another, each with a probability proportional to its weight.

    Each position gets the key ln(u) / weight with u uniform in (0, 1), and the largest keys win,
    which is drawing one after another (Efraimidis and Spirakis, Information Processing Letters 97,
    2006). Positions of weight 0 are drawn only if no other is left.

    Args:
        weights: weights, at least 0.
        count: number of positions to draw; fewer are drawn if there are fewer.
        rng: source of chance.

    Returns:
        Positions in the order in which they were drawn.
    """
    # An exponential variable of rate 1 is -ln(u); the smallest time to an event is drawn first.
    arrivals = []
    for position, weight in enumerate(weights):
        time = rng.expovariate(1.0)
        arrivals.append((weight <= 0, time / weight if weight > 0 else time, position))
    return tuple(position for *_, position in heapq.nsmallest(count, arrivals))
