"""Plans that everybody knows: one device, data parallelism, and a pipeline of contiguous stages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from laggard.workloads.planning.placement_choices import list_replicas, place_on
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan, ReplicaAverage
from laggard.workloads.planning.planning_problem import PlanningProblem

_MOST_ORDERS = 24
"""Orders of devices that pipelines are tried with."""


def list_baselines(problem: PlanningProblem) -> Mapping[str, ModelPlan]:
    """Return the plans of existing schemes, by name."""
    blocks = len(problem.blocks)
    found: dict[str, ModelPlan] = {}
    for number, device in enumerate(problem.devices):
        found[f"single device {device.name}"] = ModelPlan((place_on(problem, number),) * blocks)
    if len(problem.devices) > 1:
        for placement in list_replicas(problem, range(len(problem.devices))):
            found[_name(placement)] = ModelPlan((placement,) * blocks)
    return found


def _name(placement: BlockPlacement) -> str:
    counts = [count for count in placement.samples if count]
    shares = "even" if max(counts) - min(counts) <= 1 else "proportional"
    way = "parameter server" if placement.average is ReplicaAverage.SERVER else "all-reduce"
    return f"data parallel, {way}, {shares}"


def list_pipelines(problem: PlanningProblem, micro_batches: int) -> Iterator[ModelPlan]:
    """Yield pipelines of contiguous blocks, the best one for each order of the devices.

    The best one has the least time of a stage, with what it receives, of all micro-batches.
    """
    devices = range(len(problem.devices))
    orders = itertools.islice(itertools.permutations(devices), _MOST_ORDERS)
    seen: set[tuple[BlockPlacement, ...]] = set()
    for order in orders:
        for count in range(2, len(order) + 1):
            stages = _divide(problem, order[:count], micro_batches)
            if stages is not None and stages not in seen:
                seen.add(stages)
                yield ModelPlan(stages, micro_batches)


def _divide(
    problem: PlanningProblem, order: Sequence[int], micro_batches: int
) -> tuple[BlockPlacement, ...] | None:
    """Divide the blocks into a stage for each device, so that the slowest stage is the fastest."""
    blocks, samples = len(problem.blocks), problem.batch / micro_batches
    if blocks < len(order):
        return None
    crossing = [
        sum(edge.sample_bytes for edge in problem.edges if edge.src < cut <= edge.dst)
        for cut in range(blocks + 1)
    ]

    def stage_s(place: int, first: int, last: int) -> float:
        own = problem.devices[order[place]]
        compute_s = sum(
            own.forward[block].of(samples) + own.backward[block].of(samples)
            for block in range(first, last)
        )
        if not place:
            return compute_s
        return max(
            compute_s, problem.transfer_s(order[place - 1], order[place], samples * crossing[first])
        )

    # best[last]: least time of the slowest stage so far, and where the last of them begins.
    best: list[list[tuple[float, int]]] = [[(0.0, 0)] + [(math.inf, 0)] * blocks]
    for place in range(len(order)):
        row = [(math.inf, 0)]
        row += [
            min(
                (max(best[-1][first][0], stage_s(place, first, last)), first)
                for first in range(last)
            )
            for last in range(1, blocks + 1)
        ]
        best.append(row)
    if not math.isfinite(best[-1][blocks][0]):
        return None
    stages: list[BlockPlacement] = []
    last = blocks
    for place in range(len(order) - 1, -1, -1):
        first = best[place + 1][last][1]
        stages = [place_on(problem, order[place])] * (last - first) + stages
        last = first
    return tuple(stages)
