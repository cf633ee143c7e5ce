"""Rehearsal of one rank: which old samples it adds to a step, and what its buffer then keeps.

All ranks take the same steps and know which samples the others have. So each rank knows the number
of samples in the buffers of all, and with `exchange: global` also which ones, without a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from laggard.workloads.datasets.dataset import LabeledSplit, Raw, Split
from laggard.workloads.datasets.partition import Partition, Share
from laggard.workloads.specification.datasets import DataSettings
from laggard.workloads.specification.stream import RehearsalSpec
from laggard.workloads.streams.rehearsal_buffer import (
    BalancedBuffer,
    BufferSize,
    HeldSample,
    RehearsalBuffer,
    ReservoirBuffer,
    draw_from_all,
    draw_samples,
)
from laggard.workloads.streams.sample_exchange import SampleExchange, SendRecorder

Indices = npt.NDArray[np.int64]

_DRAW = 1
_KEEP = 2


@dataclass(frozen=True)
class SeenSamples:
    """New samples of all ranks and steps, with what decides which of them are kept.

    Attributes:
        spec: section `rehearsal` of the workload.
        partition: new samples of all ranks and steps.
        labels: class of each training sample, [N].
        seed: seed of the workload.
    """

    spec: RehearsalSpec
    partition: Partition
    labels: Indices
    seed: int

    @property
    def ranks(self) -> range:
        """Return all ranks."""
        return range(self.partition.world_size)

    def create_buffer(self, rank: int) -> RehearsalBuffer:
        """Return the empty buffer of a rank."""
        rng = np.random.default_rng((self.seed, rank, _KEEP))
        if self.spec.keep == "reservoir":
            return ReservoirBuffer(self.spec.size, rng)
        return BalancedBuffer(self.spec.size, rng)

    def create_size(self) -> BufferSize:
        """Return the number of samples in an empty buffer."""
        return BufferSize(self.spec.size, by_class=self.spec.keep == "class_balanced")

    def find(self, step: int, rank: int) -> tuple[Indices, Indices]:
        """Return the new samples of a rank in a step, and their classes, [n] each."""
        samples = self.partition.share(step, rank).indices
        return samples, self.labels[samples]

    def create_generator(self, step: int, rank: int) -> np.random.Generator:
        """Return the generator with which a rank draws its old samples of a step."""
        return np.random.default_rng((self.seed, step, rank, _DRAW))


@dataclass
class FollowedBuffers:
    """Buffers of all ranks, as each rank follows them.

    Attributes:
        seen: new samples of all ranks and steps.
    """

    seen: SeenSamples

    def __post_init__(self) -> None:
        self._buffers = [self.seen.create_buffer(rank) for rank in self.seen.ranks]
        self._next_step = 0

    def draw(self, step: int) -> Sequence[Sequence[HeldSample]]:
        """Return the old samples of every rank in a step; steps follow one another."""
        while self._next_step < step:
            for rank, buffer in enumerate(self._buffers):
                buffer.add(*self.seen.find(self._next_step, rank))
            self._next_step += 1
        held = [each.list_samples() for each in self._buffers]
        return [
            draw_from_all(held, self.seen.spec.sample, self.seen.create_generator(step, rank))
            for rank in self.seen.ranks
        ]


@dataclass
class Rehearsal:
    """Old samples of one rank in every step, and the number of those of the others.

    Attributes:
        seen: new samples of all ranks and steps.
        rank: rank that rehearses.
        exchange: thread that receives old samples; None if they are those of the rank's own buffer.
    """

    seen: SeenSamples
    rank: int
    exchange: SampleExchange | None = None

    def __post_init__(self) -> None:
        self._buffer = self.seen.create_buffer(self.rank)
        self._sizes = [self.seen.create_size() for _ in self.seen.ranks]
        self._next_step = 0

    def begin(self, first_step: int) -> None:
        """Begin to exchange old samples, from a step on."""
        if self.exchange is not None:
            self.exchange.start(first_step)

    def close(self) -> None:
        """End the exchange of old samples."""
        if self.exchange is not None:
            self.exchange.close()

    def extend(self, step: int, share: Share) -> tuple[Share, Raw | None]:
        """Return the samples of a step with old ones behind the new ones.

        The batch then counts the old samples of all ranks. Steps must be asked for one after
        another.

        Returns:
            The samples, and the content of the old ones if other ranks have sent them.

        Raises:
            ValueError: the step is before one that was asked for.
            WorkerError: a rank that should send samples has ended.
        """
        if step < self._next_step:
            raise ValueError(f"step {step}: the buffers have seen step {self._next_step} already")
        while self._next_step < step:
            self._see(self._next_step)
            self._next_step += 1
        if self.exchange is not None:
            received = self.exchange.take()
            return self._add(share, received.indices), received.raw
        rng = self.seen.create_generator(step, self.rank)
        kept = self._buffer.list_samples()
        return self._add(share, draw_samples(kept, self.seen.spec.sample, rng)), None

    def _add(self, share: Share, old: Indices) -> Share:
        counts = [each.count() for each in self._sizes]
        available = counts if self.exchange is None else [sum(counts)] * len(counts)
        return replace(
            share,
            indices=np.concatenate([share.indices, old]),
            batch_size=share.batch_size + sum(min(self.seen.spec.sample, n) for n in available),
            rehearsed=len(old),
        )

    def _see(self, step: int) -> None:
        for rank, size in enumerate(self._sizes):
            samples, labels = self.seen.find(step, rank)
            size.add(labels)
            if rank == self.rank and self.exchange is None:
                self._buffer.add(samples, labels)


def open_rehearsal(
    settings: DataSettings,
    partition: Partition,
    train: Split,
    rank: int,
    recorder: SendRecorder,
) -> Rehearsal | None:
    """Return the rehearsal of a rank; None if the workload does not rehearse.

    With a global exchange all ranks must call this, since they connect to each other.

    Args:
        settings: settings of the workload.
        partition: new samples of all ranks and steps.
        train: training samples.
        rank: this rank.
        recorder: trace of this rank.
    """
    if settings.rehearsal is None:
        return None
    assert isinstance(train, LabeledSplit)
    seen = SeenSamples(settings.rehearsal, partition, train.labels, settings.seed)
    if settings.rehearsal.exchange == "local":
        return Rehearsal(seen, rank)
    group = dist.new_group(backend="gloo")
    assert group is not None
    draw = FollowedBuffers(seen).draw
    return Rehearsal(seen, rank, SampleExchange(draw, train, train.labels, rank, group, recorder))
