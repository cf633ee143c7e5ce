"""Placements that are tried for the blocks of a model."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.workloads.planning.placements import BlockPlacement, ReplicaAverage, divide_samples
from laggard.workloads.planning.planning_problem import PlanningProblem


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
