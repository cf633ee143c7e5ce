"""Rates at which clients take part in rounds: the least cost for a fairness of participation.

With rates w of mean 1 and costs c, the mean cost of a participation is sum(w c) / n, and Jain's
index of the rates is n / sum(w^2). Minimizing the cost at a given index is a quadratic program,
whose solution is w = max(0, a - b c): the Lagrange conditions are linear in c.
"""

from __future__ import annotations

from collections.abc import Sequence

from laggard.core.selection.fairness import compute_jain_index

_BISECTIONS = 50
_TOLERANCE = 1e-9


def compute_participation_rates(costs: Sequence[float], fairness: float) -> list[float]:
    """Return how often each client takes part, relative to the mean of all.

    Args:
        costs: cost of a participation of each client, above 0.
        fairness: least Jain's index of the rates, above 0; 1 means all alike.

    Returns:
        Rates of mean 1, of the least mean cost.

    Examples:
        >>> compute_participation_rates([1.0, 1.0, 4.0], fairness=1.0)
        [1.0, 1.0, 1.0]
        >>> [round(rate, 2) for rate in compute_participation_rates([1.0, 1.0, 4.0], 0.9)]
        [1.24, 1.24, 0.53]
    """
    least, most = min(costs), max(costs)
    if fairness >= 1 or most - least <= _TOLERANCE * most:
        return [1.0] * len(costs)
    # With this slope, only the cheapest clients are left.
    low, high = 0.0, 1 / least
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        rates = [max(1 - middle * cost, 0.0) for cost in costs]
        if compute_jain_index(rates) >= fairness:
            low = middle
        else:
            high = middle
    rates = [max(1 - low * cost, 0.0) for cost in costs]
    mean = sum(rates) / len(rates)
    return [rate / mean for rate in rates]


def limit_rates(rates: Sequence[float], most: float) -> list[float]:
    """Return rates of the same mean of which none exceeds a limit; others rise in proportion.

    Args:
        rates: rates, of which the mean is at most the limit.
        most: the limit.
    """
    limited = [*rates]
    total = sum(rates)
    while (over := max(limited)) > most * (1 + _TOLERANCE):
        full = sum(each >= most for each in limited)
        below = sum(each for each in limited if each < most)
        left = total - full * most
        if below <= 0 or left <= 0 or over <= 0:
            return [min(most, each) for each in limited]
        limited = [most if each >= most else each * left / below for each in limited]
    return limited
