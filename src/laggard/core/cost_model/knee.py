"""Number of workers beyond which a training hardly gets faster.

In a closed system, the speed of n workers is at most n times that of one, and at most what its
bottleneck serves. The two bounds meet at the saturation point (E. D. Lazowska, J. Zahorjan, G. S.
Graham, K. C. Sevcik, "Quantitative System Performance", 1984, chapter 5).
"""

from __future__ import annotations

from collections.abc import Mapping

from laggard.core.errors import InputError

_FLAT = 0.02
"""Part of the greatest speed by which a speed may be less and still count as the greatest."""


def find_knee(speeds: Mapping[int, float]) -> float | None:
    """Return the number of workers at which the bounds of the speed meet.

    The speed of one worker is that of the smallest number of workers, divided by this number, and
    the greatest speed is the greatest that is given.

    Args:
        speeds: samples per second by number of workers; at least two numbers.

    Returns:
        The number, or None if the speed still grew at the largest number of workers.

    Raises:
        InputError: there are fewer than two numbers, or a speed is not positive.

    Examples:
        >>> find_knee({1: 10.0, 2: 20.0, 4: 30.0, 8: 30.0})
        3.0
        >>> find_knee({1: 10.0, 2: 20.0}) is None
        True
    """
    if len(speeds) < 2 or min(speeds.values()) <= 0 or min(speeds) < 1:
        raise InputError(
            f"the speeds of {len(speeds)} numbers of workers have no knee — give positive speeds of"
            " at least two"
        )
    numbers = sorted(speeds)
    greatest = max(speeds.values())
    reached = next(each for each in numbers if speeds[each] >= (1 - _FLAT) * greatest)
    if reached == numbers[-1]:
        return None
    return greatest / (speeds[numbers[0]] / numbers[0])
