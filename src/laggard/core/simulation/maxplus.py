"""Makespan of ranks in lockstep, by max-plus algebra, for many what-ifs at once.

A rank leaves a barrier at (latest arrival) + (its transfer), and reaches the next barrier after
its local work. A rank that is not a member of a barrier passes it without waiting. A message
between two ranks is a post, at which its sender does not wait, and a barrier of its receiver, which
also waits for the post.

After a barrier at which every rank waited for the last, only one number of the past matters: the
time of that barrier. The run is therefore cut there into blocks that are replayed side by side:
T = sum over blocks of max over ranks. A rank that left before the last had arrived (the root of a
broadcast) carries its own clock to the next barrier of its block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import BoolArray, FloatArray, IntArray

BARRIERS_AT_ONCE = 1 << 16
"""Barriers that are computed at once; it limits memory."""


@dataclass(frozen=True)
class Schedule:
    """Durations to replay, for E barriers and W ranks; the end of the run is one more barrier.

    Attributes:
        local: work before each barrier, [E + 1, W].
        transfer: time at the barrier once all members have arrived, [E + 1, W].
        own: time at the barrier of a rank that does not wait, [E + 1, W].
        depends: mask of the ranks that wait for the last to arrive, [E + 1, W].
        member: mask of the ranks that are waited for, [E + 1, W]; all ranks at the end.
        posted: index of the post that is waited for, too, or -1, [E + 1].
    """

    local: FloatArray
    transfer: FloatArray
    own: FloatArray
    depends: BoolArray
    member: BoolArray
    posted: IntArray


@dataclass(frozen=True)
class Blocks:
    """Blocks of equal length, as the indices of their barriers, [B, L].

    Index -1, the barrier before the first, stands for the start of the run.
    """

    barriers: IntArray

    def parts(self, barriers: int) -> Iterator[Blocks]:
        """Yield the same blocks in parts of at most `barriers` barriers, and at least one block."""
        room = max(1, barriers // self.barriers.shape[1])
        return (
            Blocks(self.barriers[begin : begin + room])
            for begin in range(0, len(self.barriers), room)
        )


def split_blocks(depends: BoolArray) -> tuple[Blocks, ...]:
    """Cut the barriers into blocks, grouped by length; a block ends where all ranks waited."""
    final = np.flatnonzero(depends.all(axis=1))
    first = np.concatenate([[0], final[:-1] + 1])
    length = final - first + 1
    return tuple(
        Blocks(first[length == n][:, None] + np.arange(n)[None, :])
        for n in np.unique(length)
        if (length == n).any()
    )


@dataclass(frozen=True)
class BarrierPass:
    """One barrier of every block; times count from the latest arrival at the barrier before.

    Attributes:
        barriers: indices of the barriers, [B].
        arrival_s: arrival of each rank, [..., B, W].
        latest_s: latest moment that is waited for, [..., B].
        waits_for_post: mask of the barriers that a post ends later than any arrival, [..., B].
    """

    barriers: IntArray
    arrival_s: FloatArray
    latest_s: FloatArray
    waits_for_post: BoolArray


def walk_blocks(
    blocks: Blocks, local: FloatArray, transfer: FloatArray, schedule: Schedule
) -> Iterator[BarrierPass]:
    """Yield the first barrier of every block, then the second, and so on.

    Args:
        blocks: barriers of the blocks, [B, L].
        local: work before each barrier, [..., B, L, W].
        transfer: transfer at the barrier before the block, then at all of its barriers but the
            last, [..., B, L, W].
        schedule: source of the membership and waiting of ranks, and of the stay of ranks that do
            not wait.
    """
    own, depends = schedule.own[blocks.barriers], schedule.depends[blocks.barriers]
    member = schedule.member[blocks.barriers]
    # Posts before the block are over when it begins.
    posted = schedule.posted[blocks.barriers] - blocks.barriers[:, :1]
    clock = transfer[..., 0, :]
    shape = np.broadcast_shapes(clock.shape, local.shape[:-2] + local.shape[-1:])[:-1]
    total = np.zeros(shape)
    reached = np.zeros((*shape, blocks.barriers.shape[1] if (posted >= 0).any() else 0))
    for position in range(blocks.barriers.shape[1]):
        arrival = clock + local[..., position, :]
        latest = np.where(member[:, position, :], arrival, -np.inf).max(axis=-1)
        waits_for_post = np.zeros(shape, dtype=np.bool_)
        waiting = np.flatnonzero(posted[:, position] >= 0)
        if len(waiting):
            post = reached[..., waiting, posted[waiting, position]] - total[..., waiting]
            waits_for_post[..., waiting] = post > latest[..., waiting]
            latest[..., waiting] = np.maximum(latest[..., waiting], post)
        yield BarrierPass(blocks.barriers[:, position], arrival, latest, waits_for_post)
        total = total + latest
        if reached.shape[-1]:
            reached[..., position] = total
        if position + 1 < blocks.barriers.shape[1]:
            leaving = arrival - latest[..., None] + own[:, position, :]
            clock = np.where(depends[:, position, :], transfer[..., position + 1, :], leaving)


def compute_block_seconds(
    blocks: Blocks, local: FloatArray, transfer: FloatArray, schedule: Schedule
) -> FloatArray:
    """Return the seconds that each block adds to the makespan, [..., B].

    The arguments are those of `walk_blocks`. The sum of the latest arrivals, each counted from the
    one before, is the length of the block.
    """
    total: FloatArray = np.zeros(())
    for each in walk_blocks(blocks, local, transfer, schedule):
        total = total + each.latest_s
    return total


def walk_schedule(
    schedule: Schedule, transfer_factor: FloatArray | None = None
) -> Iterator[BarrierPass]:
    """Yield all barriers of a schedule, many at once; each is yielded once.

    Args:
        schedule: durations to replay.
        transfer_factor: factors on the transfers at each barrier, [E + 1]; absent means 1.
    """
    for blocks in split_blocks(schedule.depends):
        for part in blocks.parts(BARRIERS_AT_ONCE):
            transfer = select_entering_transfers(schedule.transfer, part.barriers)
            if transfer_factor is not None:
                transfer *= transfer_factor[part.barriers - 1][..., None]
            yield from walk_blocks(part, schedule.local[part.barriers], transfer, schedule)


def select_entering_transfers(transfer: FloatArray, barriers: IntArray) -> FloatArray:
    """Return the transfer of the barrier before each of `barriers`, and 0 before the first.

    `compute_block_seconds` takes transfers in this form.
    """
    before = transfer[barriers - 1]
    return np.where((barriers > 0)[..., None], before, 0.0)


def compute_makespan(schedule: Schedule, transfer_factor: FloatArray | None = None) -> float:
    """Replay one schedule and return its makespan in virtual seconds.

    The arguments are those of `walk_schedule`.
    """
    return float(sum(each.latest_s.sum() for each in walk_schedule(schedule, transfer_factor)))
