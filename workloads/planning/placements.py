"""Placements of the blocks of a model, and plans that consist of them; imports nothing heavy."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from laggard.core.errors import InputError


class ReplicaAverage(enum.StrEnum):
    """Way in which the replicas of a block get the same gradients."""

    NONE = "none"
    SERVER = "server"
    ALL_REDUCE = "all_reduce"


@dataclass(frozen=True)
class BlockPlacement:
    """Devices of a block.

    Attributes:
        samples: samples of a step that each device computes, [devices]; replicas have different
            samples of the batch, in the order of the devices.
        average: how replicas average their gradients; none on a single device.
        server: number of the device that averages, if a server does.
    """

    samples: tuple[int, ...]
    average: ReplicaAverage = ReplicaAverage.NONE
    server: int | None = None

    @property
    def devices(self) -> tuple[int, ...]:
        """Return the numbers of the devices that compute the block."""
        return tuple(device for device, count in enumerate(self.samples) if count)

    def divide(self, micro_batch: int, micro_batches: int) -> tuple[int, ...]:
        """Return the samples of each device in a micro-batch, [devices].

        Each micro-batch is divided as the whole batch is, so the devices of all blocks together
        have the same samples of it.
        """
        batch = sum(self.samples)
        first, last = (batch * each // micro_batches for each in (micro_batch, micro_batch + 1))
        return _divide_cached(last - first, self.samples)


@dataclass(frozen=True)
class ModelPlan:
    """Plan of a step.

    Attributes:
        placements: placement of each block.
        micro_batches: parts of the batch that pass through the blocks one after another.
    """

    placements: tuple[BlockPlacement, ...]
    micro_batches: int = 1

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise InputError(f"micro_batches is {self.micro_batches} and must be at least 1")


@lru_cache(maxsize=4096)
def _divide_cached(size: int, samples: tuple[int, ...]) -> tuple[int, ...]:
    return divide_samples(size, samples)


def divide_samples(batch: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide a batch in proportion to weights, by the largest remainders.

    Examples:
        >>> divide_samples(10, [1.0, 1.0, 2.0])
        (3, 2, 5)
    """
    total = sum(weights)
    exact = [batch * weight / total for weight in weights]
    counts = [int(each) for each in exact]
    order = sorted(range(len(weights)), key=lambda each: (counts[each] - exact[each], each))
    for each in order[: batch - sum(counts)]:
        counts[each] += 1
    return tuple(counts)
