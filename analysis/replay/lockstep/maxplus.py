"""The makespan of a timeline, by max-plus algebra, for many what-ifs at once.

A rank leaves a barrier at (latest arrival) + (its transfer); it reaches the next after its local
work. A rank that is no part of a barrier passes it. Where every rank waited for the last, what came
before no longer matters but for one number, so the run falls into blocks that are replayed side by
side: T = sum over blocks of max over ranks. A rank that left before the last had arrived (the root
of a broadcast) carries its own clock on to the next barrier of its block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray
from laggard.analysis.tables.timelines.timeline import ROWS_AT_ONCE, Timeline


@dataclass(frozen=True)
class Schedule:
    """Durations to replay, E barriers, W ranks. The end of the run is a barrier of its own, hence E
    + 1.

    Attributes:
        local: work before each barrier, [E + 1, W].
        transfer: time at the barrier once all have arrived, [E + 1, W].
        own: time at the barrier of a rank that does not wait, [E + 1, W].
        depends: which ranks wait for the last, [E + 1, W].
        member: which ranks are waited for, [E + 1, W]; all at the end.
    """

    local: FloatArray
    transfer: FloatArray
    own: FloatArray
    depends: BoolArray
    member: BoolArray


@dataclass(frozen=True)
class Blocks:
    """Blocks of equal length: the barriers of each, [B, L]; -1 as the barrier before the first is
    the start.
    """

    barriers: IntArray

    def parts(self, barriers: int) -> Iterator[Blocks]:
        """The same blocks, as many at a time as have at most so many barriers, one at least."""
        room = max(1, barriers // self.barriers.shape[1])
        return (
            Blocks(self.barriers[begin : begin + room])
            for begin in range(0, len(self.barriers), room)
        )


def build_observed_schedule(timeline: Timeline) -> Schedule:
    """The durations that were measured; its makespan is the timeline's."""
    barriers, world = timeline.member.shape
    last = np.ones((1, world), dtype=np.bool_)
    depends = np.vstack([timeline.depends | timeline.pause[:, None], last])
    transfer = np.zeros((barriers + 1, world))
    for begin in range(0, barriers, ROWS_AT_ONCE):
        rows = np.s_[begin : min(begin + ROWS_AT_ONCE, barriers)]
        transfer[rows] = timeline.transfer_at(rows)
    # How long ranks stay that do not wait is asked for where there are such, so mostly nowhere.
    own: FloatArray = np.broadcast_to(0.0, transfer.shape)
    if not depends.all():
        own = np.zeros_like(transfer)
        np.subtract(timeline.finish, timeline.arrival, out=own[:-1])
    return Schedule(timeline.local, transfer, own, depends, np.vstack([timeline.member, last]))


def split_blocks(depends: BoolArray) -> tuple[Blocks, ...]:
    """Cuts the barriers, after each at which all waited, into blocks, gathered by length."""
    final = np.flatnonzero(depends.all(axis=1))
    first = np.concatenate([[0], final[:-1] + 1])
    length = final - first + 1
    return tuple(
        Blocks(first[length == n][:, None] + np.arange(n)[None, :])
        for n in np.unique(length)
        if (length == n).any()
    )


def compute_block_seconds(
    blocks: Blocks, local: FloatArray, transfer: FloatArray, schedule: Schedule
) -> FloatArray:
    """Seconds that each block adds to the makespan.

    Args:
        blocks: which barriers, [B, L].
        local: work before each barrier, [..., B, L, W].
        transfer: transfers at the barrier before the block and at all but its last, [..., B, L, W].
        schedule: who waits for whom, and how long those stay who do not.

    Returns:
        Seconds, [..., B].
    """
    own, depends = schedule.own[blocks.barriers], schedule.depends[blocks.barriers]
    member = schedule.member[blocks.barriers]
    clock = transfer[..., 0, :]
    total = np.zeros(np.broadcast_shapes(clock.shape, local.shape[:-2] + local.shape[-1:])[:-1])
    for position in range(blocks.barriers.shape[1]):
        arrival = clock + local[..., position, :]
        latest = np.where(member[:, position, :], arrival, -np.inf).max(axis=-1)
        total = total + latest
        if position + 1 < blocks.barriers.shape[1]:
            leaving = arrival - latest[..., None] + own[:, position, :]
            clock = np.where(depends[:, position, :], transfer[..., position + 1, :], leaving)
    return total


def select_entering_transfers(transfer: FloatArray, barriers: IntArray) -> FloatArray:
    """Transfers as `compute_block_seconds` takes them: of the barrier before each of `barriers`, 0
    before the first.
    """
    before = transfer[barriers - 1]
    return np.where((barriers > 0)[..., None], before, 0.0)


def compute_makespan(schedule: Schedule, transfer_factor: FloatArray | None = None) -> float:
    """Replays one schedule.

    Args:
        schedule: what to replay.
        transfer_factor: factors on the transfers at each barrier, [E + 1]; none where absent.

    Returns:
        Virtual seconds.
    """
    return float(sum(seconds.sum() for seconds in _replay_blocks(schedule, transfer_factor)))


def _replay_blocks(schedule: Schedule, transfer_factor: FloatArray | None) -> Iterator[FloatArray]:
    for blocks in split_blocks(schedule.depends):
        for part in blocks.parts(ROWS_AT_ONCE):
            at = part.barriers
            transfer = select_entering_transfers(schedule.transfer, at)
            if transfer_factor is not None:
                transfer *= transfer_factor[at - 1][..., None]
            yield compute_block_seconds(part, schedule.local[at], transfer, schedule)
