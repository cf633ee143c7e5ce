"""Who takes how many samples of every batch, by what the ranks' steps cost, and when others are
worth a change: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from laggard.workloads.balancing.allocation import AffineCost, balance, even, slowest_s
from laggard.workloads.balancing.own_cost import Found
from laggard.workloads.partition import Partition

_SIGMAS = 2.0


@dataclass(frozen=True)
class Shares:
    """The shares of every step's batch.

    Attributes:
        partition: how many samples a step has.
        least: fewest samples that the model can be trained on.
        costs: of every rank's steps, by which they are shared out; evenly when absent.
    """

    partition: Partition
    least: int
    costs: tuple[AffineCost, ...] | None = None

    def sizes(self, step: int) -> tuple[int, ...]:
        """Samples of every rank in a step."""
        return self._of(self.partition.samples_in(step))

    def revised(self, found: Sequence[Found], least_gain: float) -> Self | None:
        """Other shares, for what the ranks have found; None where somebody has found nothing yet,
        or they would not save enough.

        Args:
            found: by all ranks.
            least_gain: part of the slowest rank's step that they must save; and more than chance
                can make of costs that are so uncertain.
        """
        costs = tuple(each.cost for each in found if each.cost is not None)
        if len(costs) < len(found):
            return None
        then = replace(self, costs=costs)
        before_s, then_s = self.slowest_s(costs), then.slowest_s(costs)
        error = max(each.error for each in found)
        return then if before_s - then_s > max(least_gain, _SIGMAS * error) * before_s else None

    def slowest_s(self, costs: Sequence[AffineCost]) -> float:
        """Seconds of the slowest rank's own work on its share of a whole batch, at these costs."""
        return slowest_s(costs, self._of(self.partition.batch_size), self.least)

    def told_after(self, before: Self) -> str:
        """What these are instead of others, for people."""
        assert self.costs is not None
        batch = self.partition.batch_size
        sizes = self._of(batch)
        return (
            f"shares of {min(sizes)} to {max(sizes)} of {batch} samples, by speed: the slowest"
            f" rank's own work takes {self.slowest_s(self.costs) * 1e3:.3g} ms instead of"
            f" {before.slowest_s(self.costs) * 1e3:.3g} ms"
        )

    def _of(self, batch: int) -> tuple[int, ...]:
        return _sizes(self.costs, batch, self.partition.world_size, self.least)


@lru_cache(maxsize=8)
def _sizes(
    costs: tuple[AffineCost, ...] | None, batch: int, ranks: int, least: int
) -> tuple[int, ...]:
    return even(batch, ranks) if costs is None else balance(costs, batch, least)
