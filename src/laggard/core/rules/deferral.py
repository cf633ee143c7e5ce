"""Rule of averages across tiers that wait until they are worth their time; pure.

An average across tiers costs time, and without it the tiers forget what only others still train on,
and drift apart. So the time of the exchanges limits how often the tiers average, and forgetting or
drift how rarely. The interval doubles and halves, as that of J. Wang and G. Joshi (*Adaptive
communication strategies to achieve the best error-runtime trade-off in local-update SGD*, MLSys
2019) does with the loss.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TierMeasurement:
    """Measurements of one tier since the last average across tiers.

    Attributes:
        exchange_s: seconds of the tier's exchange with the others in that average; 0 before any.
        step_s: mean seconds of a step within the tier.
        need: what grows without averages: the rise of the loss on old samples since that average,
            or the drift of the tier's model; 0 if it is not known yet.
    """

    exchange_s: float
    step_s: float
    need: float


@dataclass(frozen=True)
class DeferralRule:
    """Limits of the interval between two averages across tiers.

    Attributes:
        overhead: most seconds of exchanges per second of steps; None without a limit.
        tolerance: need above which tiers average more often.
    """

    overhead: float | None
    tolerance: float

    def plan_interval(self, previous: int, tiers: Sequence[TierMeasurement]) -> int:
        """Return the steps until the next average.

        The slowest tier decides how long a step takes, and the tier with the greatest need whether
        the interval halves or doubles. Of an exchange, the tier that arrives last has the shortest
        time, since it waits for nobody.

        Args:
            previous: the present interval.
            tiers: measurements of all tiers.

        Examples:
            >>> rule = DeferralRule(overhead=0.1, tolerance=0.2)
            >>> rule.plan_interval(2, [TierMeasurement(1.0, 0.5, 0.0)])
            20
            >>> rule.plan_interval(64, [TierMeasurement(1.0, 0.5, 0.3)])
            32
        """
        exchange_s = min(each.exchange_s for each in tiers)
        step_s = max(each.step_s for each in tiers)
        is_needed = max(each.need for each in tiers) > self.tolerance
        wanted = max(1, previous // 2) if is_needed else 2 * previous
        if step_s <= 0 or self.overhead is None:
            return wanted
        return max(wanted, math.ceil(exchange_s / (self.overhead * step_s)))


@dataclass
class DeferredSynchronization:
    """Synchronization at the ends of tasks, and in a planned step before.

    Attributes:
        ends: last steps of the tasks, in ascending order.
        planned: planned step; None for none. An earlier end of a task comes first.
        averaged: last step with a synchronization that was not known long before.
    """

    ends: Sequence[int]
    planned: int | None = None
    averaged: int | None = None

    def plan(self, step: int, interval: int) -> None:
        """Plan the synchronization after the one in `step`."""
        self.averaged, self.planned = step, step + interval

    def next(self, step: int) -> int:
        """Return the first synchronization step at or after `step` that is known already."""
        if step == self.averaged:
            return step
        place = bisect_left(self.ends, step)
        end = self.ends[place] if place < len(self.ends) else step
        if self.planned is None or step > self.planned:
            return end
        return min(end, self.planned)

    def is_due(self, step: int) -> bool:
        """Return whether a step synchronizes."""
        return self.next(step) == step
