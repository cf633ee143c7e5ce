"""One rank's part in sharing out batches by speed: times its own steps, and tells the others what they cost.

Each exchange is one all-gather of four numbers per rank, in a step in which all meet; from the same numbers every rank works out the same
shares, so nobody has to be told them. They hold until the next exchange that finds better ones.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from laggard.span_schema import Phase
from laggard.workloads.balancing.allocation import AffineCost, balance, even, slowest_s
from laggard.workloads.balancing.capacity import CONFIRMED, Capacity
from laggard.workloads.partition import Partition
from laggard.workloads.strategies.parameters import BalancedBatches
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.tracing.recorder import WARM_UP_STEPS

PATIENCE = 8
"""Steps that an exchange waits for a meeting; then it makes ranks wait for each other by itself."""

GROUP = 1 << 20
"""Of the exchange's spans; strategies number their collectives from 0."""

_SIGMAS = 2.0


class Balancer:
    """Who takes how many samples.

    Args:
        parameters: how often, and from when on, shares are changed.
        seat: what this rank trains with.
        partition: how many samples a step has.
        least: fewest samples that the model can be trained on.
        ratio: the fixed part of a step in samples, where that is known beforehand.
    """

    def __init__(
        self, parameters: BalancedBatches, seat: Seat, partition: Partition, least: int, ratio: float = 0.0
    ) -> None:
        self._parameters, self._seat, self._partition, self._least = parameters, seat, partition, least
        self._capacity = Capacity(parameters.window, ratio)
        self._costs: tuple[AffineCost, ...] | None = None
        self._sizes: dict[int, tuple[int, ...]] = {}
        self._own_ns = seat.recorder.own_ns
        self._next = WARM_UP_STEPS + CONFIRMED

    def sizes(self, step: int) -> tuple[int, ...]:
        """Samples of every rank in a step."""
        batch = self._partition.samples_in(step)
        if batch not in self._sizes:
            self._sizes[batch] = self._shares(self._costs, batch)
        return self._sizes[batch]

    def finish(self, step: int, computed: int, *, meets: bool) -> None:
        """This rank has done a step.

        Args:
            step: its number, from 0.
            computed: samples that it computed, padding included.
            meets: whether no rank could finish it before all had begun it: there costs are exchanged, where that is due, and else a period later.
        """
        own_ns, self._own_ns = self._own_ns, self._seat.recorder.own_ns
        if step >= WARM_UP_STEPS:
            self._capacity.observe(computed, (self._own_ns - own_ns) / 1e9)
        # A meeting is waited for as long as it comes soon: elsewhere the exchange makes ranks wait for each other.
        if step >= self._next + (0 if meets else PATIENCE):
            self._exchange(step)

    def _exchange(self, step: int) -> None:
        rows = self._tell_all()
        costs = tuple(AffineCost(fixed_s, sample_s) for fixed_s, sample_s, *_ in rows if sample_s)
        if len(costs) == len(rows):
            self._perhaps_change(step, costs, max(error for *_, error, _ in rows))
        # One step off its usual may be the first of many: the next tells, so look again when it has.
        soon = any(departs for *_, departs in rows)
        self._next = step + (min(CONFIRMED, self._parameters.every) if soon else self._parameters.every)

    def _tell_all(self) -> list[list[float]]:
        """What every rank has found: the two parts of its cost, their error, and whether its last step departs; zeros where it has found nothing."""
        capacity = self._capacity
        cost = capacity.estimate()
        found = (0.0, 0.0, 0.0, 0.0)
        if cost is not None:
            found = (cost.fixed_s, cost.sample_s, capacity.error, float(capacity.departs))
        sent = torch.tensor([found] * self._seat.world_size, dtype=torch.float64).to(self._seat.device)
        told = torch.empty_like(sent)
        self._seat.recorder.enter(Phase.COMM, group=GROUP, payload_bytes=told.nbytes)
        # An all-gather in one round trip: gloo's own goes around a ring, at a round trip for every rank.
        dist.all_to_all_single(told, sent)
        rows: list[list[float]] = told.tolist()
        self._seat.recorder.enter(Phase.OTHER)
        return rows

    def _perhaps_change(self, step: int, costs: tuple[AffineCost, ...], error: float) -> None:
        """Take up the shares for these costs, if they save enough, and more than chance can make of costs that are so uncertain."""
        batch = self._partition.batch_size
        shares = self._shares(costs, batch)
        before_s = slowest_s(costs, self._shares(self._costs, batch), self._least)
        then_s = slowest_s(costs, shares, self._least)
        if before_s - then_s <= max(self._parameters.least_gain, _SIGMAS * error) * before_s:
            return
        self._costs = costs
        self._sizes.clear()
        if self._seat.rank == 0:  # all ranks decide the same
            self._seat.note(
                step,
                f"shares of {min(shares)} to {max(shares)} of {batch} samples, by speed: the slowest rank's own work takes "
                f"{then_s * 1e3:.3g} ms instead of {before_s * 1e3:.3g} ms",
            )

    def _shares(self, costs: tuple[AffineCost, ...] | None, batch: int) -> tuple[int, ...]:
        if costs is None:
            return even(batch, self._partition.world_size)
        return balance(costs, batch, self._least)
