"""Balancing of batches by speed on a parameter server.

Workers push the costs of their steps, and the server answers with each worker's part of the next
batch. Workers are not all in the same step. New shares are therefore used from the first step that
no worker has been assigned yet, so that every sample of a batch belongs to exactly one worker.
"""

from __future__ import annotations

from collections.abc import Callable

from laggard.core.span_schema import WARM_UP_STEPS
from laggard.workloads.balancing.cost_estimator import CONFIRMING_STEPS
from laggard.workloads.balancing.cost_monitor import CostReport
from laggard.workloads.balancing.parameters import BalancedBatches
from laggard.workloads.balancing.shares import Shares


class ServerBalancer:
    """Balancer of a server: assigns each worker its part of every batch.

    Args:
        parameters: settings of the balancing.
        shares: shares of the first steps.
        record_decision: function that records a change: its first step and a sentence.
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
        """Record a worker's report on a step; revise the shares once all workers have reported."""
        self._reported_steps[rank] = step
        # A worker that rejoined has no estimate at first; its earlier report stays in use.
        if found.cost is not None:
            self._reports[rank] = found
        if min(self._reported_steps.values()) >= self._next:
            self._revise_shares()

    def remove_member(self, rank: int) -> None:
        """Stop waiting for a worker that was lost; its part is not trained on."""
        self._reported_steps.pop(rank, None)

    def assign_range(self, rank: int, step: int) -> range:
        """Return the positions in a step's batch that a worker takes, when it begins that step."""
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
        # An outlier may be the first step at a new speed. The next steps will show it, so revise
        # again soon.
        soon = any(found.is_outlier for found in self._reports)
        period = min(CONFIRMING_STEPS, self._parameters.every) if soon else self._parameters.every
        self._next = min(self._reported_steps.values()) + period
