"""Balancing of batches by speed without a server, on one rank.

The rank measures its own steps and exchanges their cost with the others. Each exchange sends four
numbers from every rank to all, in a step in which all synchronize. Every rank computes the same
shares from the same numbers, so nobody has to distribute them. The shares are used until an
exchange finds better ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist

from laggard.core.span_schema import WARM_UP_STEPS, Phase
from laggard.workloads.balancing.cost_estimator import CONFIRMING_STEPS
from laggard.workloads.balancing.cost_monitor import CostMonitor, CostReport
from laggard.workloads.balancing.parameters import BalancedBatches
from laggard.workloads.balancing.shares import Shares
from laggard.workloads.datasets.partition import Share
from laggard.workloads.tracing.recorder import Recorder

MAX_WAIT_STEPS = 8
"""Steps for which an exchange waits for a synchronization step; after them, the exchange itself
makes the ranks wait for each other."""

EXCHANGE_GROUP = 1 << 20
"""Group number of the exchange's spans; strategies number their collectives from 0."""

AllGather = Callable[[Sequence[float], int], list[list[float]]]
"""Function that sends this rank's numbers to all ranks, with spans of a group, and returns every
rank's numbers, by rank."""


@runtime_checkable
class SupportsAllGather(Protocol):
    """Strategy that exchanges numbers between all ranks itself, without torch's collectives."""

    def all_gather(self, numbers: Sequence[float], group: int) -> list[list[float]]:
        """Send this rank's numbers to all ranks and return every rank's numbers, by rank."""


class BalancerContext(Protocol):
    """Properties of a rank that balancing needs."""

    @property
    def rank(self) -> int:
        """Number of the rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def device(self) -> torch.device:
        """Device that collectives take their tensors from."""

    @property
    def recorder(self) -> Recorder:
        """Recorder of the rank's phases."""

    @property
    def record_decision(self) -> Callable[[int, str], None]:
        """Function that records a decision: its step and a sentence."""


class BatchSharing(Protocol):
    """Division of each batch among the ranks, as one rank follows it."""

    def share(self, step: int) -> Share:
        """Return this rank's samples in a step; steps follow one another."""

    def finish(self, step: int, computed: int, *, synchronizes: bool) -> None:
        """Process a finished step of this rank, and exchange costs if an exchange is due.

        Args:
            step: number of the step, from 0.
            computed: number of samples computed, including padding.
            synchronizes: whether no rank can finish the step before all have begun it. A due
                exchange waits for such a step, but at most `MAX_WAIT_STEPS` steps.
        """


class Balancer:
    """Balancer of one rank: decides the number of samples of every rank.

    Args:
        parameters: settings of the balancing.
        context: properties of this rank.
        shares: shares of the first steps.
        all_gather: function for the exchange; torch's collectives if None.
    """

    def __init__(
        self,
        parameters: BalancedBatches,
        context: BalancerContext,
        shares: Shares,
        all_gather: AllGather | None = None,
    ) -> None:
        self._parameters, self._context, self._shares = parameters, context, shares
        self._all_gather = all_gather or gather_by_collective(context)
        self._cost_monitor = CostMonitor(parameters.window, context.recorder)
        self._next = WARM_UP_STEPS + CONFIRMING_STEPS

    def share(self, step: int) -> Share:
        """Return this rank's samples in a step."""
        sizes = self._shares.sizes(step)
        return self._shares.partition.share(step, self._context.rank, sizes)

    def finish(self, step: int, computed: int, *, synchronizes: bool) -> None:
        """Process a finished step of this rank; see `BatchSharing.finish`."""
        self._cost_monitor.observe(step, computed)
        # Outside a synchronization step the exchange makes ranks wait for each other, so wait for
        # such a step if it comes soon.
        if step >= self._next + (0 if synchronizes else MAX_WAIT_STEPS):
            self._exchange(step)

    def _exchange(self, step: int) -> None:
        reports = [
            CostReport.from_numbers(row)
            for row in self._all_gather(self._cost_monitor.report.as_numbers, EXCHANGE_GROUP)
        ]
        revised = self._shares.revise(reports, self._parameters.min_gain)
        if revised is not None:
            if self._context.rank == 0:  # all ranks make the same decision
                self._context.record_decision(step, revised.describe_change(self._shares))
            self._shares = revised
        # An outlier may be the first step at a new speed. The next steps will show it, so exchange
        # again soon.
        soon = any(each.is_outlier for each in reports)
        self._next = step + (
            min(CONFIRMING_STEPS, self._parameters.every) if soon else self._parameters.every
        )


def gather_by_collective(context: BalancerContext) -> AllGather:
    """Return a function that exchanges numbers between all ranks by a collective of torch."""

    def gather(numbers: Sequence[float], group: int) -> list[list[float]]:
        sent = torch.tensor([list(numbers)] * context.world_size, dtype=torch.float64).to(
            context.device
        )
        gathered = torch.empty_like(sent)
        context.recorder.enter(Phase.COMM, group=group, payload_bytes=gathered.nbytes)
        # This is an all-gather in one round trip. Gloo's own all-gather uses a ring, with one round
        # trip per rank.
        dist.all_to_all_single(gathered, sent)
        rows: list[list[float]] = gathered.tolist()
        context.recorder.enter(Phase.OTHER)
        return rows

    return gather
