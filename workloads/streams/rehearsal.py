"""Rehearsal of one rank: which old samples it adds to a step, and what its buffer then keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from laggard.workloads.datasets.partition import Partition, Share
from laggard.workloads.specification.stream import RehearsalSpec
from laggard.workloads.streams.rehearsal_buffer import (
    BalancedBuffer,
    HeldSample,
    RehearsalBuffer,
    ReservoirBuffer,
    draw_from_all,
    draw_from_own,
)

Indices = npt.NDArray[np.int64]

_DRAW = 1
_KEEP = 2


@dataclass
class Rehearsal:
    """Buffers of all ranks, as one rank follows them.

    All ranks take the same steps and know the samples of each other, so each one follows the
    buffers of all without a message. Only samples travel.

    Attributes:
        spec: section `rehearsal` of the workload.
        partition: new samples of all ranks and steps.
        labels: class of each training sample, [N].
        rank: rank whose old samples are drawn.
        seed: seed of the workload.
    """

    spec: RehearsalSpec
    partition: Partition
    labels: Indices
    rank: int
    seed: int

    def __post_init__(self) -> None:
        self._buffers = [self._create_buffer(rank) for rank in range(self.partition.world_size)]
        self._next_step = 0

    def draw(self, step: int) -> tuple[HeldSample, ...]:
        """Return the old samples that this rank rehearses in a step.

        Steps must be asked for one after another.

        Raises:
            ValueError: the step is before one that was asked for.
        """
        if step < self._next_step:
            raise ValueError(f"step {step}: the buffers have seen step {self._next_step} already")
        while self._next_step < step:
            self._see(self._next_step)
            self._next_step += 1
        rng = np.random.default_rng((self.seed, step, self.rank, _DRAW))
        held = [each.list_samples() for each in self._buffers]
        if self.spec.exchange == "global":
            return draw_from_all(held, self.spec.sample, rng)
        return draw_from_own(held, self.rank, self.spec.sample, rng)

    def extend(self, share: Share, held: tuple[HeldSample, ...]) -> Share:
        """Return the samples of the step of the last draw, with the old ones behind the new ones.

        The mean over the whole batch then counts the old samples of all ranks.
        """
        old = np.array([each.sample for each in held], dtype=np.int64)
        return replace(
            share,
            indices=np.concatenate([share.indices, old]),
            batch_size=share.batch_size + self._count_drawn(),
        )

    def _count_drawn(self) -> int:
        """Return the number of old samples of all ranks in a step."""
        sizes = [len(each.list_samples()) for each in self._buffers]
        if self.spec.exchange == "global":
            return len(sizes) * min(self.spec.sample, sum(sizes))
        return sum(min(self.spec.sample, size) for size in sizes)

    def _see(self, step: int) -> None:
        for rank, buffer in enumerate(self._buffers):
            samples = self.partition.share(step, rank).indices
            buffer.add(samples, self.labels[samples])

    def _create_buffer(self, rank: int) -> RehearsalBuffer:
        rng = np.random.default_rng((self.seed, rank, _KEEP))
        if self.spec.keep == "reservoir":
            return ReservoirBuffer(self.spec.size, rng)
        return BalancedBuffer(self.spec.size, rng)
