"""Generated planning problems, and their optimum by trying everything."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from laggard.core.cost_model.links import NetworkHop
from laggard.core.simulation.task_graph import ResourceTask, compute_upward_ranks
from laggard.workloads.planning.placement_choices import list_replicas, place_on
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan
from laggard.workloads.planning.planning_problem import (
    AffineSeconds,
    BlockEdge,
    ModelBlock,
    PlanDevice,
    PlanningProblem,
)
from laggard.workloads.planning.step_tasks import build_step_tasks

BATCH = 24


def generate_problem(
    seed: int, blocks: int, devices: int = 3, *, memory: bool = False
) -> PlanningProblem:
    """Return a chain of blocks, with one skipping edge, on unequal devices and links."""
    rng = random.Random(seed)
    sizes = [rng.uniform(0.05, 4.0) * 1e6 for _ in range(blocks)]
    flops = [rng.uniform(0.2, 2.0) for _ in range(blocks)]
    factors = [1.0, *(rng.uniform(1.0, 6.0) for _ in range(devices - 1))]
    edges = [BlockEdge(at, at + 1, rng.uniform(1e3, 6e4)) for at in range(blocks - 1)]
    if blocks > 3:
        edges.append(BlockEdge(0, 2, rng.uniform(1e3, 2e4)))
    total = 4 * sum(sizes)
    return PlanningProblem(
        blocks=tuple(
            ModelBlock(f"block {number}", size, saved_bytes=2e4, update_s=4e-10 * size)
            for number, size in enumerate(sizes)
        ),
        edges=tuple(edges),
        devices=tuple(
            PlanDevice(
                f"device {number}",
                tuple(AffineSeconds(2e-3, 2e-3 * each).scaled(factor) for each in flops),
                tuple(AffineSeconds(3e-3, 4e-3 * each).scaled(factor) for each in flops),
                memory_bytes=0.6 * total if memory else None,
            )
            for number, factor in enumerate(factors)
        ),
        links={
            (src, dst): NetworkHop((str(src), str(dst)), rng.uniform(50, 1000), rng.uniform(0, 10))
            for src, dst in itertools.permutations(range(devices), 2)
        },
        batch=BATCH,
        optimizer_copies=1,
    )


def list_few_placements(problem: PlanningProblem) -> tuple[BlockPlacement, ...]:
    """Return each device alone, and all together in four ways."""
    devices = range(len(problem.devices))
    return (
        *(place_on(problem, device) for device in devices),
        *list_replicas(problem, devices),
    )


def list_plans(
    problem: PlanningProblem, placements: Sequence[BlockPlacement], micro_batches: int
) -> Iterator[ModelPlan]:
    """Yield all plans."""
    for chosen in itertools.product(placements, repeat=len(problem.blocks)):
        yield ModelPlan(chosen, micro_batches)


def find_shortest_s(problem: PlanningProblem, plan: ModelPlan, below_s: float) -> float:
    """Return the shortest step of a plan in any order, if it is below a time."""
    return _Orders(build_step_tasks(problem, plan).tasks, below_s).best_s


class _Orders:
    """All active schedules of tasks (B. Giffler, G. L. Thompson, Oper. Res. 8, 1960).

    In an active schedule no task could begin earlier without another one being later. Before the
    task that could be over first has its resources back, one that needs such a resource begins.
    """

    def __init__(self, tasks: Sequence[ResourceTask], below_s: float) -> None:
        self.best_s = below_s
        self._tasks, self._ranks = tasks, compute_upward_ranks(tasks)
        self._followers: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for before in task.after:
                self._followers[before].append(number)
        waits = [len(task.after) for task in tasks]
        earliest = {number: 0.0 for number, count in enumerate(waits) if not count}
        self._branch(earliest, waits, {}, {}, 0.0)

    def _branch(
        self,
        eligible: dict[int, float],
        waits: list[int],
        done: dict[int, float],
        free: dict[int, float],
        end_s: float,
    ) -> None:
        if not eligible:
            self.best_s = min(self.best_s, end_s)
            return
        starts = {
            number: max([ready_s, *(free.get(each, 0.0) for each in self._tasks[number].resources)])
            for number, ready_s in eligible.items()
        }
        if max(start_s + self._ranks[number] for number, start_s in starts.items()) >= self.best_s:
            return
        first = min(starts, key=lambda each: (starts[each] + self._tasks[each].seconds, each))
        until_s = starts[first] + self._tasks[first].seconds
        needed = {*self._tasks[first].resources}
        rivals = [
            number
            for number, start_s in starts.items()
            if number == first or (needed & {*self._tasks[number].resources} and start_s < until_s)
        ]
        for number in sorted(rivals, key=lambda each: -self._ranks[each]):
            self._take(number, starts[number], eligible, waits, done, free, end_s)

    def _take(
        self,
        number: int,
        start_s: float,
        eligible: dict[int, float],
        waits: list[int],
        done: dict[int, float],
        free: dict[int, float],
        end_s: float,
    ) -> None:
        task = self._tasks[number]
        over_s = start_s + task.seconds
        now_done = {**done, number: over_s + task.delay_s}
        now_free = {**free, **dict.fromkeys(task.resources, over_s)}
        now_waits, now_eligible = list(waits), dict(eligible)
        del now_eligible[number]
        for later in self._followers[number]:
            now_waits[later] -= 1
            if not now_waits[later]:
                now_eligible[later] = max(now_done[each] for each in self._tasks[later].after)
        self._branch(now_eligible, now_waits, now_done, now_free, max(end_s, over_s + task.delay_s))


def find_optimum(
    problem: PlanningProblem, placements: Sequence[BlockPlacement], micro_batches: int = 1
) -> float:
    """Return the shortest step of all plans in all orders."""
    best_s = math.inf
    for plan in list_plans(problem, placements, micro_batches):
        best_s = find_shortest_s(problem, plan, best_s)
    return best_s
