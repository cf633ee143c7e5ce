"""Hierarchical local SGD: averages within a tier often, over the far links between tiers seldom.

T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020, section 5 and appendix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from laggard.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.flat_state import FlatState
from laggard.workloads.strategies.local_gradient import LocalGradient
from laggard.workloads.strategies.meeting import next_meeting
from laggard.workloads.strategies.parameters import HierarchicalParameters
from laggard.workloads.strategies.strategy import Seat


class Hierarchical:
    """w_k <- w_k - lr * g_k; w_k <- the mean of its tier every `tier_steps`, the mean of all every `wan_steps`.

    The mean of all travels between the first ranks of the tiers only: sum within each tier, sum of the tiers' sums, then back.

    Args:
        parameters: how often.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: HierarchicalParameters, seat: Seat) -> None:
        self.model, self.optimizer = seat.model, seat.optimizer
        self._parameters, self._seat = parameters, seat
        self._gradient = LocalGradient(seat)
        self._state = FlatState(seat.model)
        members = ranks_of_tiers(seat.tiers)
        self._tier = next(tier for tier, ranks in enumerate(members) if seat.rank in ranks)
        self._members, self._tiers = members[self._tier], len(members)
        # Every rank makes every group, in the same order, as torch wants it.
        self._within = [dist.new_group(ranks) for ranks in members][self._tier]
        self._leaders = dist.new_group([ranks[0] for ranks in members])

    def change(self, parameters: HierarchicalParameters) -> None:
        """Average as often as these say from now on; in a step after which all ranks have one model."""
        self._parameters = parameters

    def meets(self, step: int) -> int:
        """The next step with an average of all (see `Strategy`)."""
        return next_meeting(step, self._parameters.wan_steps, self._seat.last_step)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Forward, backward, update; then perhaps average (see `Strategy`)."""
        loss = self._gradient.learn(batch, share)
        if self.meets(step) == step:
            self._average_all()
        elif next_meeting(step, self._parameters.tier_steps, None) == step:
            self._average_tier()
        self._seat.recorder.enter(Phase.OTHER)
        return Learnt(loss)

    def _average_tier(self) -> None:
        mine = self._read()
        self._sum_within(mine)
        self._write(mine / len(self._members))

    def _average_all(self) -> None:
        mine = self._read()
        self._sum_within(mine)
        if self._seat.rank == self._members[0]:
            self._collective(2 * self._tiers, lambda: dist.all_reduce(mine, group=self._leaders))
        if len(self._members) > 1:
            self._collective(
                self._tiers + self._tier, lambda: dist.broadcast(mine, self._members[0], group=self._within)
            )
        self._write(mine / self._seat.world_size)

    def _sum_within(self, state: torch.Tensor) -> None:
        if len(self._members) > 1:
            self._collective(self._tier, lambda: dist.all_reduce(state, group=self._within))

    def _collective(self, number: int, do: Callable[[], object]) -> None:
        self._seat.recorder.enter(Phase.COMM, group=number, payload_bytes=self._state.bytes)
        do()
        self._gradient.settle()

    def _read(self) -> torch.Tensor:
        state = self._state.read()
        self._gradient.settle()
        return state

    def _write(self, state: torch.Tensor) -> None:
        self._seat.recorder.enter(Phase.OPTIMIZER)
        self._state.write(state)
        self._gradient.settle()


def ranks_of_tiers(tiers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The ranks of every tier; tiers in the order of their first ranks.

    Args:
        tiers: the tier of every rank, in rank order.
    """
    return tuple(tuple(rank for rank, other in enumerate(tiers) if other == tier) for tier in dict.fromkeys(tiers))
