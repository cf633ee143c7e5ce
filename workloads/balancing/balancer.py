"""One rank's part in sharing out batches by speed without a server: times its own steps, and tells
the others what they cost.

Each exchange is four numbers from every rank to all, in a step in which all meet; from the same
numbers every rank works out the same shares, so nobody has to be told them. They hold until the
next exchange that finds better ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from laggard.span_schema import Phase
from laggard.workloads.balancing.capacity import CONFIRMED
from laggard.workloads.balancing.own_cost import Found, OwnCost
from laggard.workloads.balancing.shares import Shares
from laggard.workloads.strategies.parameters import BalancedBatches
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.tracing.recorder import WARM_UP_STEPS

PATIENCE = 8
"""Steps that an exchange waits for a meeting; then it makes ranks wait for each other by itself."""

GROUP = 1 << 20
"""Of the exchange's spans; strategies number their collectives from 0."""

TellAll = Callable[[Sequence[float], int], list[list[float]]]
"""Tells all ranks this one's numbers, with spans of a group; returns everybody's, by rank."""


class Balancer:
    """Who takes how many samples.

    Args:
        parameters: how often, and from when on, shares are changed.
        seat: what this rank trains with.
        shares: those of the first steps.
        tell_all: how ranks tell each other; over torch's collectives when absent.
    """

    def __init__(
        self,
        parameters: BalancedBatches,
        seat: Seat,
        shares: Shares,
        tell_all: TellAll | None = None,
    ) -> None:
        self._parameters, self._seat, self._shares = parameters, seat, shares
        self._tell_all = tell_all or self._tell_all_by_collective
        self._own_cost = OwnCost(parameters.window, seat.recorder)
        self._next = WARM_UP_STEPS + CONFIRMED

    def sizes(self, step: int) -> tuple[int, ...]:
        """Samples of every rank in a step."""
        return self._shares.sizes(step)

    def finish(self, step: int, computed: int, *, meets: bool) -> None:
        """This rank has done a step.

        Args:
            step: its number, from 0.
            computed: samples that it computed, padding included.
            meets: whether no rank could finish it before all had begun it: there costs are
                exchanged, where that is due, and else a period later.
        """
        self._own_cost.observe(step, computed)
        # A meeting is waited for as long as it comes soon: elsewhere the exchange makes ranks wait
        # for each other.
        if step >= self._next + (0 if meets else PATIENCE):
            self._exchange(step)

    def _exchange(self, step: int) -> None:
        found = [
            Found.of_numbers(row) for row in self._tell_all(self._own_cost.found.numbers, GROUP)
        ]
        revised = self._shares.revised(found, self._parameters.least_gain)
        if revised is not None:
            if self._seat.rank == 0:  # all ranks decide the same
                self._seat.note(step, revised.told_after(self._shares))
            self._shares = revised
        # One step off its usual may be the first of many: the next tells, so look again when it
        # has.
        soon = any(each.departs for each in found)
        self._next = step + (
            min(CONFIRMED, self._parameters.every) if soon else self._parameters.every
        )

    def _tell_all_by_collective(self, numbers: Sequence[float], group: int) -> list[list[float]]:
        sent = torch.tensor([list(numbers)] * self._seat.world_size, dtype=torch.float64).to(
            self._seat.device
        )
        told = torch.empty_like(sent)
        self._seat.recorder.enter(Phase.COMM, group=group, payload_bytes=told.nbytes)
        # An all-gather in one round trip: gloo's own goes around a ring, at a round trip for every
        # rank.
        dist.all_to_all_single(told, sent)
        rows: list[list[float]] = told.tolist()
        self._seat.recorder.enter(Phase.OTHER)
        return rows
