"""What a step's collectives took against what the same collectives usually take, while the run goes
on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

_KEPT = 100


class CollectiveMedians:
    """Running medians of every collective of a step, by its number."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}

    def compute_relative(self, groups: Sequence[int], seconds: Sequence[float]) -> float:
        """All of a step's collectives over what they usually take; 0 where there is none, 1 where
        none is known yet.
        """
        known = [
            (took, self._seconds[group])
            for group, took in zip(groups, seconds, strict=True)
            if group in self._seconds
        ]
        if not known:
            return 1.0 if groups else 0.0
        usual = sum(median(before) for _, before in known)
        return sum(took for took, _ in known) / usual if usual > 0 else 1.0

    def add_normal_step(self, groups: Sequence[int], seconds: Sequence[float]) -> None:
        """Takes a step in which they were as usual."""
        for group, took in zip(groups, seconds, strict=True):
            self._seconds.setdefault(group, deque(maxlen=_KEPT)).append(took)
