"""A server's part in sharing out batches by speed: workers push what their steps cost, and are
answered with their part of the next batch.

Workers are not all in the same step, so other shares hold from the first step on that nobody has
been answered with: every sample of a batch is one worker's, whatever step each is in.
"""

from __future__ import annotations

from collections.abc import Callable

from laggard.workloads.balancing.capacity import CONFIRMED
from laggard.workloads.balancing.own_cost import Found
from laggard.workloads.balancing.shares import Shares
from laggard.workloads.strategies.parameters import BalancedBatches
from laggard.workloads.tracing.recorder import WARM_UP_STEPS


class Dealer:
    """Who takes which part of the batch of every step.

    Args:
        parameters: how often, and from when on, shares are changed.
        shares: those of the first steps.
        note: told of changes, by the first step with them, a sentence each.
    """

    def __init__(
        self, parameters: BalancedBatches, shares: Shares, note: Callable[[int, str], None]
    ) -> None:
        self._parameters, self._note = parameters, note
        self._since = [(0, shares)]
        self._found = [Found()] * shares.partition.world_size
        self._told: dict[int, int] = {}
        self._next = WARM_UP_STEPS + CONFIRMED
        self._begun = 0

    def hear(self, rank: int, step: int, found: Found) -> None:
        """A worker has pushed what a step brought, and says what its steps cost; once all have that
        are there, shares may change.
        """
        self._told[rank] = step
        if (
            found.cost is not None
        ):  # what the rank cost before it was away holds until it knows better
            self._found[rank] = found
        if min(self._told.values()) >= self._next:
            self._look()

    def leave(self, rank: int) -> None:
        """A worker is gone, and is waited for no longer; its part is not learnt from."""
        self._told.pop(rank, None)

    def part(self, rank: int, step: int) -> range:
        """Places in the batch of a step that a worker takes, which begins that step now."""
        self._begun = max(self._begun, step)
        shares = next(shares for since, shares in reversed(self._since) if since <= step)
        sizes = shares.sizes(step)
        first = sum(sizes[:rank])
        return range(first, first + sizes[rank])

    def _look(self) -> None:
        _, before = self._since[-1]
        revised = before.revised(self._found, self._parameters.least_gain)
        if revised is not None:
            since = self._begun + 1
            self._since.append((since, revised))
            self._note(since, revised.told_after(before))
        # One step off its usual may be the first of many: the next tells, so look again when it
        # has.
        soon = any(found.departs for found in self._found)
        period = min(CONFIRMED, self._parameters.every) if soon else self._parameters.every
        self._next = min(self._told.values()) + period
