"""Plans by local search: from known plans, one block or a run of blocks is placed elsewhere."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from laggard.core.errors import InputError
from laggard.workloads.planning.baselines import list_baselines, list_pipelines
from laggard.workloads.planning.evaluate_plan import compute_step_s
from laggard.workloads.planning.placement_choices import list_placements
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan
from laggard.workloads.planning.plan_memory import require_memory
from laggard.workloads.planning.planning_problem import PlanningProblem

MICRO_BATCHES = (1, 2, 4, 8)
_SHAKES = 40
"""Searches from changed copies of the best plan, one after another, without a better plan."""
_STARTS = 4
"""Known plans from which a search begins, the best ones."""


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        evaluations: largest number of plans that are simulated.
        placements: placements that are tried for each block; None for the usual ones.
        micro_batches: numbers of micro-batches that are tried.
        seed: seed of the search.
    """

    evaluations: int = 4000
    placements: tuple[BlockPlacement, ...] | None = None
    micro_batches: tuple[int, ...] = MICRO_BATCHES
    seed: int = 1


@dataclass(frozen=True)
class FoundPlan:
    """Plan that a search has found.

    Attributes:
        plan: the plan.
        step_s: seconds of a step, with tasks in the order of upward ranks.
    """

    plan: ModelPlan
    step_s: float


def search_plan(problem: PlanningProblem, options: SearchOptions | None = None) -> FoundPlan:
    """Find a plan that is not worse than any known one.

    Args:
        problem: the model and the continuum.
        options: options of the search.

    Raises:
        InputError: the model fits no devices, or no plan has all links that it needs.
    """
    require_memory(problem)
    return _Search(problem, options or SearchOptions()).run()


class _Search:
    def __init__(self, problem: PlanningProblem, options: SearchOptions) -> None:
        self._problem, self._options = problem, options
        self._placements = options.placements or list_placements(problem)
        self._micro_batches = [each for each in options.micro_batches if each <= problem.batch] or [
            1
        ]
        self._known: dict[ModelPlan, float] = {}
        self._rng = random.Random(options.seed)  # noqa: S311 - no secrets

    @property
    def _is_over(self) -> bool:
        return len(self._known) >= self._options.evaluations

    def run(self) -> FoundPlan:
        starts = sorted({*self._list_starts()}, key=self._step_s)
        for start in starts[:_STARTS]:
            self._descend(start)
        # Then from changed copies of the best plan, until the budget is spent.
        left = _SHAKES
        while left and not self._is_over and math.isfinite(self._best().step_s):
            before = self._best()
            self._descend(self._shake(before.plan))
            left = _SHAKES if self._best() != before else left - 1
        found = self._best()
        if not math.isfinite(found.step_s):
            raise InputError(
                "no plan was found that fits the memory of all devices and has all links — give the"
                " devices more memory, or more links"
            )
        return found

    def _best(self) -> FoundPlan:
        plan = min(self._known, key=lambda each: self._known[each])
        return FoundPlan(plan, self._known[plan])

    def _step_s(self, plan: ModelPlan) -> float:
        if plan not in self._known:
            self._known[plan] = compute_step_s(self._problem, plan)
        return self._known[plan]

    def _list_starts(self) -> Iterator[ModelPlan]:
        allowed = {*self._placements}
        for plan in list_baselines(self._problem).values():
            if {*plan.placements} <= allowed:
                yield plan
        for micro_batches in self._micro_batches:
            for plan in list_pipelines(self._problem, micro_batches):
                if {*plan.placements} <= allowed:
                    yield plan

    def _descend(self, plan: ModelPlan) -> None:
        """Take the best change of a plan again and again, while it helps."""
        current_s = self._step_s(plan)
        while not self._is_over:
            best = min(self._list_changes(plan), key=self._step_s)
            if self._step_s(best) >= current_s:
                return
            plan, current_s = best, self._step_s(best)

    def _list_changes(self, plan: ModelPlan) -> Iterator[ModelPlan]:
        """Yield plans that differ in a run of blocks, or in the number of micro-batches."""
        for micro_batches in self._micro_batches:
            yield ModelPlan(plan.placements, micro_batches)
        blocks = len(plan.placements)
        for first in range(blocks):
            for last in range(first + 1, blocks + 1):
                for placement in self._placements:
                    if self._is_over:
                        return
                    yield _change(plan, first, last, placement)

    def _shake(self, plan: ModelPlan) -> ModelPlan:
        """Return a plan with two random runs of blocks placed elsewhere."""
        for _ in range(2):
            first = self._rng.randrange(len(plan.placements))
            last = self._rng.randint(first + 1, len(plan.placements))
            plan = _change(plan, first, last, self._rng.choice(self._placements))
        return ModelPlan(plan.placements, self._rng.choice(self._micro_batches))


def _change(plan: ModelPlan, first: int, last: int, placement: BlockPlacement) -> ModelPlan:
    placements: Sequence[BlockPlacement] = plan.placements
    changed = (*placements[:first], *[placement] * (last - first), *placements[last:])
    return ModelPlan(changed, plan.micro_batches)
