"""One rank's part in sharing out batches by speed without a server: times its own steps, and tells
the others what they cost.

Each exchange is four numbers from every rank to all, in a step in which all meet; from the same
numbers every rank works out the same shares, so nobody has to be told them. They hold until the
next exchange that finds better ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist

from laggard.core.span_schema import Phase
from laggard.workloads.balancing.cost_estimator import CONFIRMING_STEPS
from laggard.workloads.balancing.cost_monitor import CostMonitor, CostReport
from laggard.workloads.balancing.parameters import BalancedBatches
from laggard.workloads.balancing.shares import Shares
from laggard.workloads.tracing.recorder import WARM_UP_STEPS, Recorder

MAX_WAIT_STEPS = 8
"""Steps that an exchange waits for a meeting; then it makes ranks wait for each other by itself."""

EXCHANGE_GROUP = 1 << 20
"""Of the exchange's spans; strategies number their collectives from 0."""

AllGather = Callable[[Sequence[float], int], list[list[float]]]
"""Tells all ranks this one's numbers, with spans of a group; returns everybody's, by rank."""


@runtime_checkable
class SupportsAllGather(Protocol):
    """Strategy that exchanges numbers between all ranks by itself, without torch's collectives."""

    def all_gather(self, numbers: Sequence[float], group: int) -> list[list[float]]:
        """Send this rank's numbers to all ranks; return everybody's, by rank."""


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


class Balancer:
    """Balancer of one rank: decides the number of samples of every rank.

    Args:
        parameters: how often, and from when on, shares are changed.
        context: what this rank trains with.
        shares: those of the first steps.
        all_gather: how ranks tell each other; over torch's collectives when absent.
    """

    def __init__(
        self,
        parameters: BalancedBatches,
        context: BalancerContext,
        shares: Shares,
        all_gather: AllGather | None = None,
    ) -> None:
        self._parameters, self._context, self._shares = parameters, context, shares
        self._all_gather = all_gather or self._all_gather_by_collective
        self._cost_monitor = CostMonitor(parameters.window, context.recorder)
        self._next = WARM_UP_STEPS + CONFIRMING_STEPS

    def sizes(self, step: int) -> tuple[int, ...]:
        """Samples of every rank in a step."""
        return self._shares.sizes(step)

    def finish(self, step: int, computed: int, *, synchronizes: bool) -> None:
        """This rank has done a step.

        Args:
            step: its number, from 0.
            computed: samples that it computed, padding included.
            synchronizes: whether no rank could finish it before all had begun it: there costs are
                exchanged, where that is due, and else a period later.
        """
        self._cost_monitor.observe(step, computed)
        # A meeting is waited for as long as it comes soon: elsewhere the exchange makes ranks wait
        # for each other.
        if step >= self._next + (0 if synchronizes else MAX_WAIT_STEPS):
            self._exchange(step)

    def _exchange(self, step: int) -> None:
        reports = [
            CostReport.from_numbers(row)
            for row in self._all_gather(self._cost_monitor.report.as_numbers, EXCHANGE_GROUP)
        ]
        revised = self._shares.revise(reports, self._parameters.min_gain)
        if revised is not None:
            if self._context.rank == 0:  # all ranks decide the same
                self._context.record_decision(step, revised.describe_change(self._shares))
            self._shares = revised
        # One step off its usual may be the first of many: the next tells, so look again when it
        # has.
        soon = any(each.is_outlier for each in reports)
        self._next = step + (
            min(CONFIRMING_STEPS, self._parameters.every) if soon else self._parameters.every
        )

    def _all_gather_by_collective(self, numbers: Sequence[float], group: int) -> list[list[float]]:
        sent = torch.tensor([list(numbers)] * self._context.world_size, dtype=torch.float64).to(
            self._context.device
        )
        gathered = torch.empty_like(sent)
        self._context.recorder.enter(Phase.COMM, group=group, payload_bytes=gathered.nbytes)
        # An all-gather in one round trip: gloo's own goes around a ring, at a round trip for every
        # rank.
        dist.all_to_all_single(gathered, sent)
        rows: list[list[float]] = gathered.tolist()
        self._context.recorder.enter(Phase.OTHER)
        return rows
