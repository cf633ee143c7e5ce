"""The schemes that `adaptive` chooses from, and what a step of each is expected to take; pure.

All are synchronous in the sense that ranks take the same steps, so that one can follow another wherever all ranks have one model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PERIODS = (2, 4, 8, 16, 32)
"""Steps between two averages that are considered."""


@dataclass(frozen=True)
class Scheme:
    """A way of making one model of the ranks' updates.

    Attributes:
        name: the strategy that it is.
        period: steps between two averages of all ranks.
    """

    name: Literal["allreduce", "local_sgd", "hierarchical"]
    period: int = 1

    def told(self) -> str:
        """For people."""
        if self.name == "allreduce":
            return "average all gradients in every step"
        often = f"average all models every {self.period} steps"
        return often if self.name == "local_sgd" else f"average models within tiers in every step, and {often}"


EVERY_STEP = Scheme("allreduce")


@dataclass(frozen=True)
class Costs:
    """What the continuum makes of a step, all in seconds.

    Attributes:
        work_s: of the slowest rank, by itself, where all wait for each other every so many steps: who is slow by turns is waited for less where that is seldom.
            By steps between two meetings, from 1 on; for more than the most that is there, that counts.
        flat_s: an average of all ranks over the ring, once all have come to it.
        tier_s: one within the slowest tier; None where tiers have one rank each, or nobody has tried.
        wide_s: one of all ranks, by way of the tiers' first ranks; None where nobody has tried.
        flat_bytes: that one over the ring sends between tiers.
        wide_bytes: that one by way of the first ranks does.
    """

    work_s: Mapping[int, float]
    flat_s: float
    tier_s: float | None = None
    wide_s: float | None = None
    flat_bytes: float = 0.0
    wide_bytes: float = 0.0

    def work(self, period: int = 1) -> float:
        """Of the slowest rank, for a step, where all meet every so many steps."""
        return self.work_s[max(known for known in self.work_s if known <= period)]

    def step_s(self, scheme: Scheme) -> float:
        """What a step takes on average."""
        if scheme.name == "hierarchical":
            assert self.tier_s is not None
            assert self.wide_s is not None
            return self.work() + self.tier_s + (self.wide_s - self.tier_s) / scheme.period
        return self.work(scheme.period) + self.flat_s / scheme.period

    def step_bytes(self, scheme: Scheme) -> float:
        """What a step sends between tiers on average."""
        return (self.wide_bytes if scheme.name == "hierarchical" else self.flat_bytes) / scheme.period


def schemes(costs: Costs, longest: int) -> tuple[Scheme, ...]:
    """The schemes whose costs are known, the simplest first.

    Args:
        costs: what was measured.
        longest: steps between two averages, at most.
    """
    periods = [period for period in PERIODS if period <= longest]
    local = [Scheme("local_sgd", period) for period in periods]
    if costs.tier_s is None or costs.wide_s is None:
        return (EVERY_STEP, *local)
    return (EVERY_STEP, *local, *(Scheme("hierarchical", period) for period in periods))
