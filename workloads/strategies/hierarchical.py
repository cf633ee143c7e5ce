"""Hierarchical local SGD: averages within a tier often, over the far links between tiers seldom.

T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, "Don't use large mini-batches, use local SGD", ICLR
2020, section 5 and appendix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from laggard.span_schema import Phase
from laggard.workloads.compress.codec import Codec, size_bytes, vector_codec
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.learnt import Learnt
from laggard.workloads.partition import Share
from laggard.workloads.strategies.compressed_meeting import CompressedMeeting
from laggard.workloads.strategies.flat_state import FlatState
from laggard.workloads.strategies.local_gradient import LocalGradient
from laggard.workloads.strategies.meeting import next_meeting
from laggard.workloads.strategies.parameters import HierarchicalParameters
from laggard.workloads.strategies.sample_weights import SampleWeights
from laggard.workloads.strategies.strategy import Seat


class Hierarchical:
    """w_k <- w_k - lr * g_k; w_k <- the mean of its tier every `tier_steps`, the mean of all every
    `wan_steps`.

    The mean of all travels between the first ranks of the tiers only: sum within each tier, sum of
    the tiers' sums, then back.

    Args:
        parameters: how often, and what moves are compressed with.
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
        codec = vector_codec(parameters.compress)
        by_samples = codec is None and parameters.balanced_batches is not None
        self._in_tier, self._in_all = (
            SampleWeights(by_samples=by_samples),
            SampleWeights(by_samples=by_samples),
        )
        self._moves = None if codec is None else self._compressed(codec)

    def _compressed(self, codec: Codec) -> _TierMoves:
        seat, count, settle = self._seat, self._state.parameters, self._gradient.settle
        within = CompressedMeeting(codec, seat, count, settle, len(self._members), self._within)
        across = CompressedMeeting(codec, seat, count, settle, self._tiers, self._leaders)
        agreed = self._state.read()[:count]
        return _TierMoves(within, across, agreed, agreed.clone())

    @property
    def weight(self) -> float:
        """How much this rank's model counts (see `Strategy`)."""
        return self._in_all.weight

    def meets(self, step: int) -> int:
        """The next step with an average of all (see `Strategy`)."""
        return next_meeting(step, self._parameters.wan_steps, self._seat.last_step)

    def step(self, step: int, batch: Batch, share: Share) -> Learnt:
        """Forward, backward, update; then perhaps average (see `Strategy`)."""
        loss = self._gradient.learn(batch, share, self._in_tier.loss_scale(share))
        self._in_tier.took(share)
        self._in_all.took(share)
        if self.meets(step) == step:
            self._average_all()
        elif next_meeting(step, self._parameters.tier_steps, None) == step:
            self._average_tier()
        self._seat.recorder.enter(Phase.OTHER)
        return Learnt(loss)

    def _average_tier(self) -> None:
        if self._moves is not None:
            self._write(self._agreed_by_tier(self._moves))
            return
        mine = self._in_tier.weigh(self._read())
        self._sum_within(mine)
        self._write(self._in_tier.mean(mine, len(self._members)))

    def _average_all(self) -> None:
        if self._moves is not None:
            self._write(self._agreed_by_all(self._moves))
            return
        mine = self._in_all.weigh(self._read())
        self._sum_within(mine)
        if self._seat.rank == self._members[0]:
            self._collective(2 * self._tiers, lambda: dist.all_reduce(mine, group=self._leaders))
        if len(self._members) > 1:
            self._collective(
                self._tiers + self._tier,
                lambda: dist.broadcast(mine, self._members[0], group=self._within),
            )
        self._in_tier.mean(mine, self._seat.world_size)  # which begins anew, too
        self._write(self._in_all.mean(mine, self._seat.world_size))

    def _agreed_by_tier(self, moves: _TierMoves) -> torch.Tensor:
        """The tier's last mean plus the mean of what its ranks say they have moved since."""
        count, vector = self._state.parameters, self._read()
        if len(self._members) == 1:
            moves.by_tier = vector[:count].clone()
            return vector
        vector[:count] -= moves.by_tier
        mean = moves.within.mean(vector, self._tier)
        moves.by_tier += mean[:count]
        return torch.cat([moves.by_tier, mean[count:]])

    def _agreed_by_all(self, moves: _TierMoves) -> torch.Tensor:
        """The last mean of all plus the mean of what first ranks say their tiers have moved since,
        as they have told the other ranks of theirs.
        """
        count, vector = self._state.parameters, self._agreed_by_tier(moves)
        if self._tiers == 1:
            return vector
        exchanged, buffers = moves.across.room(vector)
        if self._seat.rank == self._members[0]:
            vector[:count] -= moves.by_all
            vector *= self._tiers * len(self._members) / self._seat.world_size
            exchanged, buffers = moves.across.exchange(vector, 2 * self._tiers)
        if len(self._members) > 1:
            self._collective(
                self._tiers + self._tier,
                lambda: [
                    dist.broadcast(each, self._members[0], group=self._within)
                    for each in (exchanged, buffers)
                    if each.numel()
                ],
                size_bytes(exchanged) + size_bytes(buffers),
            )
        mean = moves.across.decode(exchanged, buffers)
        moves.by_all += mean[:count]
        moves.by_tier = moves.by_all.clone()
        return torch.cat([moves.by_all, mean[count:]])

    def _sum_within(self, state: torch.Tensor) -> None:
        if len(self._members) > 1:
            self._collective(self._tier, lambda: dist.all_reduce(state, group=self._within))

    def _collective(
        self, number: int, do: Callable[[], object], payload_bytes: int | None = None
    ) -> None:
        size = self._state.bytes if payload_bytes is None else payload_bytes
        self._seat.recorder.enter(Phase.COMM, group=number, payload_bytes=size)
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


@dataclass
class _TierMoves:
    """Compressed averages: how they are made, and the parameters that a tier's ranks, and all
    ranks, last agreed upon.
    """

    within: CompressedMeeting
    across: CompressedMeeting
    by_tier: torch.Tensor
    by_all: torch.Tensor


def ranks_of_tiers(tiers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The ranks of every tier; tiers in the order of their first ranks.

    Args:
        tiers: the tier of every rank, in rank order.
    """
    return tuple(
        tuple(rank for rank, other in enumerate(tiers) if other == tier)
        for tier in dict.fromkeys(tiers)
    )
