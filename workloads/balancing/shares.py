"""Who takes how many samples of every batch, by what the ranks' steps cost, and when others are
worth a change: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from laggard.workloads.balancing.allocation import AffineCost, allocate_samples, estimate_slowest_s
from laggard.workloads.balancing.cost_monitor import CostReport
from laggard.workloads.datasets.partition import Partition, split_evenly

_SIGMAS = 2.0


@dataclass(frozen=True)
class Shares:
    """The shares of every step's batch.

    Attributes:
        partition: how many samples a step has.
        min_samples: fewest samples that the model can be trained on.
        costs: of every rank's steps, by which they are shared out; evenly when absent.
    """

    partition: Partition
    min_samples: int
    costs: tuple[AffineCost, ...] | None = None

    def sizes(self, step: int) -> tuple[int, ...]:
        """Samples of every rank in a step."""
        return self._sizes_of_batch(self.partition.samples_in(step))

    def revise(self, reports: Sequence[CostReport], min_gain: float) -> Self | None:
        """Other shares, for what the ranks have found; None where somebody has found nothing yet,
        or they would not save enough.

        Args:
            reports: by all ranks.
            min_gain: part of the slowest rank's step that they must save; and more than chance
                can make of costs that are so uncertain.
        """
        costs = tuple(each.cost for each in reports if each.cost is not None)
        if len(costs) < len(reports):
            return None
        revised = replace(self, costs=costs)
        before_s, revised_s = self.slowest_s(costs), revised.slowest_s(costs)
        error = max(each.error for each in reports)
        return revised if before_s - revised_s > max(min_gain, _SIGMAS * error) * before_s else None

    def slowest_s(self, costs: Sequence[AffineCost]) -> float:
        """Seconds of the slowest rank's own work on its share of a whole batch, at these costs."""
        return estimate_slowest_s(
            costs, self._sizes_of_batch(self.partition.batch_size), self.min_samples
        )

    def describe_change(self, before: Self) -> str:
        """Describe the change from other shares to these, for people."""
        assert self.costs is not None
        batch = self.partition.batch_size
        sizes = self._sizes_of_batch(batch)
        return (
            f"shares of {min(sizes)} to {max(sizes)} of {batch} samples, by speed: the slowest"
            f" rank's own work takes {self.slowest_s(self.costs) * 1e3:.3g} ms instead of"
            f" {before.slowest_s(self.costs) * 1e3:.3g} ms"
        )

    def _sizes_of_batch(self, batch: int) -> tuple[int, ...]:
        return _compute_sizes(self.costs, batch, self.partition.world_size, self.min_samples)


@lru_cache(maxsize=8)
def _compute_sizes(
    costs: tuple[AffineCost, ...] | None, batch: int, ranks: int, min_samples: int
) -> tuple[int, ...]:
    return (
        split_evenly(batch, ranks) if costs is None else allocate_samples(costs, batch, min_samples)
    )
