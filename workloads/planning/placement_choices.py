"""Placements that are tried for the blocks of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

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

    They are each device alone, and replicas on all devices, on the two, three, … fastest ones, and
    on those that are near to each other.
    """
    numbers = range(len(problem.devices))
    fastest = sorted(numbers, key=lambda each: -problem.devices[each].speed(problem.batch))
    sets = [tuple(sorted(fastest[:count])) for count in range(len(problem.devices), 1, -1)]
    found = dict.fromkeys(place_on(problem, device) for device in numbers)
    for devices in dict.fromkeys((*sets, *list_clusters(problem))):
        found |= dict.fromkeys(list_replicas(problem, devices))
    return tuple(found)


def list_clusters(problem: PlanningProblem) -> tuple[tuple[int, ...], ...]:
    """Return the sets of devices that the fastest links connect, one after another.

    The links are added in the order in which they carry all parameters (single linkage; P. H. A.
    Sneath, "The application of computers to taxonomy", J. Gen. Microbiol. 17, 1957).
    """
    size_bytes = sum(each.parameter_bytes for each in problem.blocks)

    def pass_s(pair: tuple[int, int]) -> float:
        return sum(
            problem.transfer_s(src, dst, size_bytes) + problem.delay_s(src, dst)
            for src, dst in (pair, pair[::-1])
        )

    cluster_of: dict[int, tuple[int, ...]] = {
        number: (number,) for number in range(len(problem.devices))
    }
    found: list[tuple[int, ...]] = []
    for pair in sorted(combinations(cluster_of, 2), key=pass_s):
        first, second = (cluster_of[each] for each in pair)
        if first == second or not math.isfinite(pass_s(pair)):
            continue
        merged = tuple(sorted((*first, *second)))
        cluster_of |= dict.fromkeys(merged, merged)
        found.append(merged)
    return tuple(found)
