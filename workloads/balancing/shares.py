"""Shares of every batch by the ranks' costs, and the rule for when a change pays off; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from laggard.workloads.balancing.allocation import AffineCost, allocate_samples, estimate_slowest_s
from laggard.workloads.balancing.cost_monitor import CostReport
from laggard.workloads.datasets.partition import Partition, split_evenly

_SIGMAS = 2.0
"""Number of standard errors that a saving must exceed."""


@dataclass(frozen=True)
class Shares:
    """Shares of every step's batch.

    Attributes:
        partition: number of samples of each step.
        min_samples: fewest samples that the model can be trained on.
        costs: cost of every rank's steps, which determines the shares; None for even shares.
    """

    partition: Partition
    min_samples: int
    costs: tuple[AffineCost, ...] | None = None

    def sizes(self, step: int) -> tuple[int, ...]:
        """Return the number of samples of every rank in a step."""
        return self._sizes_of_batch(self.partition.samples_in(step))

    def revise(self, reports: Sequence[CostReport], min_gain: float) -> Self | None:
        """Return better shares for the reported costs.

        The result is None if a rank has no cost yet or if the new shares would not save enough.

        Args:
            reports: reports of all ranks.
            min_gain: fraction of the slowest rank's step that new shares must save. They must also
                save more than twice the largest standard error.
        """
        costs = tuple(each.cost for each in reports if each.cost is not None)
        if len(costs) < len(reports):
            return None
        revised = replace(self, costs=costs)
        before_s, revised_s = self.slowest_s(costs), revised.slowest_s(costs)
        error = max(each.error for each in reports)
        return revised if before_s - revised_s > max(min_gain, _SIGMAS * error) * before_s else None

    def slowest_s(self, costs: Sequence[AffineCost]) -> float:
        """Return the seconds of the slowest rank's own work on its share of a whole batch."""
        return estimate_slowest_s(
            costs, self._sizes_of_batch(self.partition.batch_size), self.min_samples
        )

    def describe_change(self, before: Self) -> str:
        """Return a sentence about the change from other shares to these."""
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
