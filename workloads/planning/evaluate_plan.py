"""Seconds of a step of a plan, as the simulation plays it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from laggard.core.simulation.task_graph import (
    TaskSchedule,
    compute_upward_ranks,
    schedule_tasks,
)
from laggard.workloads.planning.placements import ModelPlan
from laggard.workloads.planning.plan_memory import fits_memory
from laggard.workloads.planning.planning_problem import PlanningProblem
from laggard.workloads.planning.step_tasks import StepTasks, build_step_tasks

_ORDERS = 200
"""Orders of tasks that are tried for one plan."""
_CHANGED = 0.3
"""Largest part by which a priority is changed in such an order."""


@dataclass(frozen=True)
class EvaluatedPlan:
    """Plan with the simulation of a step.

    Attributes:
        plan: the plan.
        tasks: tasks of a step.
        schedule: their times.
    """

    plan: ModelPlan
    tasks: StepTasks
    schedule: TaskSchedule

    @property
    def step_s(self) -> float:
        """Return the seconds of a step."""
        return self.schedule.makespan_s


def compute_step_s(problem: PlanningProblem, plan: ModelPlan) -> float:
    """Return the seconds of a step; infinite if it lacks a link, or memory."""
    if not fits_memory(problem, plan):
        return math.inf
    tasks = build_step_tasks(problem, plan)
    if not tasks.is_possible:
        return math.inf
    return schedule_tasks(tasks.tasks, compute_upward_ranks(tasks.tasks)).makespan_s


def evaluate_plan(
    problem: PlanningProblem, plan: ModelPlan, seed: int = 1, orders: int = _ORDERS
) -> EvaluatedPlan:
    """Simulate a step in the best order that is found.

    The order by upward ranks is the first; others change some priorities.

    Args:
        problem: the model and the continuum.
        plan: a plan that has all links that it needs.
        seed: seed of the changes.
        orders: number of other orders that are tried.
    """
    tasks = build_step_tasks(problem, plan)
    priorities = compute_upward_ranks(tasks.tasks)
    best = schedule_tasks(tasks.tasks, priorities)
    rng = random.Random(seed)  # noqa: S311 - no secrets
    shortest_s = _find_longest_chain(tasks, priorities)
    for _ in range(orders):
        if best.makespan_s <= shortest_s * (1 + 1e-12):
            break
        changed = [each * (1 + rng.uniform(-_CHANGED, _CHANGED)) for each in priorities]
        found = schedule_tasks(tasks.tasks, changed)
        if found.makespan_s < best.makespan_s:
            best, priorities = found, changed
    return EvaluatedPlan(plan, tasks, best)


def _find_longest_chain(tasks: StepTasks, ranks: Sequence[float]) -> float:
    """Return the seconds of the longest chain of tasks, which no order can shorten."""
    return max(
        (rank for task, rank in zip(tasks.tasks, ranks, strict=True) if not task.after),
        default=0.0,
    )
