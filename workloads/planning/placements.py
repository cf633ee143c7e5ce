"""Choices for the blocks of a model, and plans that consist of them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from laggard.core.errors import InputError
from laggard.workloads.planning.planning_problem import PlanningProblem


class ReplicaAverage(enum.StrEnum):
    """How the replicas of a block get the same gradients."""

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


def place_on(problem: PlanningProblem, device: int) -> BlockPlacement:
    """Return the placement of a block on one device."""
    samples = [0] * len(problem.devices)
    samples[device] = problem.batch
    return BlockPlacement(tuple(samples))


def list_replicas(problem: PlanningProblem, devices: Sequence[int]) -> tuple[BlockPlacement, ...]:
    """Return the placements of a block on several devices: equal or proportional, both ways.

    The server is the fastest of the devices. A proportional placement has samples by the speeds of
    the devices.

    Args:
        problem: the problem.
        devices: numbers of two or more devices.
    """
    even = divide_samples(problem.batch, [1.0] * len(devices))
    speeds = [problem.devices[device].speed(problem.batch / len(devices)) for device in devices]
    proportional = divide_samples(problem.batch, speeds)
    server = max(zip(speeds, devices, strict=True), key=lambda each: each[0])[1]
    found: dict[BlockPlacement, None] = {}
    for counts in (even, proportional):
        samples = [0] * len(problem.devices)
        for device, count in zip(devices, counts, strict=True):
            samples[device] = count
        if sum(count > 0 for count in samples) < 2:
            continue
        found[BlockPlacement(tuple(samples), ReplicaAverage.SERVER, server)] = None
        found[BlockPlacement(tuple(samples), ReplicaAverage.ALL_REDUCE)] = None
    return tuple(found)


def list_placements(problem: PlanningProblem) -> tuple[BlockPlacement, ...]:
    """Return the placements that are tried for a block.

    They are each device alone, and replicas on all devices and on the two, three, … fastest ones.
    """
    numbers = range(len(problem.devices))
    fastest = sorted(numbers, key=lambda each: -problem.devices[each].speed(problem.batch))
    found = dict.fromkeys(place_on(problem, device) for device in numbers)
    for count in range(len(problem.devices), 1, -1):
        found |= dict.fromkeys(list_replicas(problem, sorted(fastest[:count])))
    return tuple(found)


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
