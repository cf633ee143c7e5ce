"""Rehearsal of one rank: which old samples it adds to a step, and what its buffer then keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from laggard.workloads.datasets.dataset import LabeledSplit, Split
from laggard.workloads.datasets.partition import Partition, Share
from laggard.workloads.specification.datasets import DataSettings
from laggard.workloads.specification.stream import RehearsalSpec
from laggard.workloads.streams.rehearsal_buffer import (
    BalancedBuffer,
    BufferSize,
    RehearsalBuffer,
    ReservoirBuffer,
    draw_samples,
)

Indices = npt.NDArray[np.int64]

_DRAW = 1
_KEEP = 2


@dataclass
class Rehearsal:
    """Buffer of one rank, and the number of samples in the buffers of the others.

    All ranks take the same steps and know which samples the others have, so each rank knows how
    many old samples the others add to a step, without a message.

    Attributes:
        spec: section `rehearsal` of the workload.
        partition: new samples of all ranks and steps.
        labels: class of each training sample, [N].
        rank: rank that rehearses.
        seed: seed of the workload.
    """

    spec: RehearsalSpec
    partition: Partition
    labels: Indices
    rank: int
    seed: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng((self.seed, self.rank, _KEEP))
        self._buffer: RehearsalBuffer = (
            ReservoirBuffer(self.spec.size, rng)
            if self.spec.keep == "reservoir"
            else BalancedBuffer(self.spec.size, rng)
        )
        self._sizes = [
            BufferSize(self.spec.size, by_class=self.spec.keep == "class_balanced")
            for _ in range(self.partition.world_size)
        ]
        self._next_step = 0

    def extend(self, step: int, share: Share) -> Share:
        """Return the samples of a step with old ones of the buffer behind the new ones.

        The batch then counts the old samples of all ranks. Steps must be asked for one after
        another.

        Raises:
            ValueError: the step is before one that was asked for.
        """
        if step < self._next_step:
            raise ValueError(f"step {step}: the buffers have seen step {self._next_step} already")
        while self._next_step < step:
            self._see(self._next_step)
            self._next_step += 1
        rng = np.random.default_rng((self.seed, step, self.rank, _DRAW))
        old = draw_samples(self._buffer.list_samples(), self.spec.sample, rng)
        of_all = sum(min(self.spec.sample, each.count()) for each in self._sizes)
        return replace(
            share,
            indices=np.concatenate([share.indices, old]),
            batch_size=share.batch_size + of_all,
        )

    def _see(self, step: int) -> None:
        for rank, size in enumerate(self._sizes):
            samples = self.partition.share(step, rank).indices
            labels = self.labels[samples]
            size.add(labels)
            if rank == self.rank:
                self._buffer.add(samples, labels)


def plan_rehearsal(
    settings: DataSettings, partition: Partition, train: Split, rank: int
) -> Rehearsal | None:
    """Return the rehearsal of a rank with empty buffers; None if the workload has none."""
    if settings.rehearsal is None:
        return None
    assert isinstance(train, LabeledSplit)
    return Rehearsal(settings.rehearsal, partition, train.labels, rank, settings.seed)
