"""A server's part in sharing out batches by speed: workers push what their steps cost, and are
answered with their part of the next batch.

Workers are not all in the same step, so other shares hold from the first step on that nobody has
been answered with: every sample of a batch is one worker's, whatever step each is in.
"""

from __future__ import annotations

from collections.abc import Callable

from laggard.workloads.balancing.cost_estimator import CONFIRMING_STEPS
from laggard.workloads.balancing.cost_monitor import CostReport
from laggard.workloads.balancing.parameters import BalancedBatches
from laggard.workloads.balancing.shares import Shares
from laggard.workloads.tracing.recorder import WARM_UP_STEPS


class ServerBalancer:
    """Balancer of a server: assigns each worker its part of every batch.

    Args:
        parameters: how often, and from when on, shares are changed.
        shares: those of the first steps.
        record_decision: told of changes, by the first step with them, a sentence each.
    """

    def __init__(
        self,
        parameters: BalancedBatches,
        shares: Shares,
        record_decision: Callable[[int, str], None],
    ) -> None:
        self._parameters, self._record_decision = parameters, record_decision
        self._shares_by_step = [(0, shares)]
        self._reports = [CostReport()] * shares.partition.world_size
        self._reported_steps: dict[int, int] = {}
        self._next = WARM_UP_STEPS + CONFIRMING_STEPS
        self._last_begun_step = 0

    def record_cost(self, rank: int, step: int, found: CostReport) -> None:
        """A worker has pushed what a step brought, and says what its steps cost; once all have that
        are there, shares may change.
        """
        self._reported_steps[rank] = step
        if (
            found.cost is not None
        ):  # what the rank cost before it was away holds until it knows better
            self._reports[rank] = found
        if min(self._reported_steps.values()) >= self._next:
            self._revise_shares()

    def remove_member(self, rank: int) -> None:
        """A worker is gone, and is waited for no longer; its part is not trained on."""
        self._reported_steps.pop(rank, None)

    def assign_range(self, rank: int, step: int) -> range:
        """Places in the batch of a step that a worker takes, which begins that step now."""
        self._last_begun_step = max(self._last_begun_step, step)
        shares = next(shares for since, shares in reversed(self._shares_by_step) if since <= step)
        sizes = shares.sizes(step)
        first = sum(sizes[:rank])
        return range(first, first + sizes[rank])

    def _revise_shares(self) -> None:
        _, before = self._shares_by_step[-1]
        revised = before.revise(self._reports, self._parameters.min_gain)
        if revised is not None:
            since = self._last_begun_step + 1
            self._shares_by_step.append((since, revised))
            self._record_decision(since, revised.describe_change(before))
        # One step off its usual may be the first of many: the next tells, so look again when it
        # has.
        soon = any(found.is_outlier for found in self._reports)
        period = min(CONFIRMING_STEPS, self._parameters.every) if soon else self._parameters.every
        self._next = min(self._reported_steps.values()) + period
