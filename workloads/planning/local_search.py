"""Plans by simulated annealing: from known plans, a run of blocks is placed elsewhere.

Worse plans are taken too, the less often the longer the search lasts (S. Kirkpatrick, C. D. Gelatt,
M. P. Vecchi, "Optimization by simulated annealing", Science 220, 1983).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from laggard.core.errors import InputError
from laggard.workloads.planning.baselines import list_baselines, list_pipelines
from laggard.workloads.planning.evaluate_plan import compute_step_s, evaluate_plan
from laggard.workloads.planning.placement_choices import list_placements
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan
from laggard.workloads.planning.plan_memory import require_memory
from laggard.workloads.planning.planning_problem import PlanningProblem

MICRO_BATCHES = (1, 2, 4, 8)
_STARTS = 4
"""Known plans from which a search begins, the best ones."""
_HOT, _COLD = 0.05, 0.001
"""Temperatures at the begin and the end of a search, as parts of the shortest step so far."""
_TRIES = 4
"""Changes that are tried for each plan that may be simulated: some are known, or impossible."""
_RESPLIT = 0.1
"""Probability that a change is one of the number of micro-batches."""
_GROWTH = 0.5
"""Probability that one more block is in the run that is placed elsewhere."""
_FINALISTS = 20
"""Plans that are compared in the best order of their tasks that is found."""


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
        step_s: seconds of a step, with tasks in the best order that is found.
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
        self._simulated = 0
        self._rng = random.Random(options.seed)  # noqa: S311 - no secrets

    def run(self) -> FoundPlan:
        starts = sorted(dict.fromkeys(self._list_starts()), key=self._step_s)
        for start in starts[:_STARTS]:
            self._anneal(start)
        found = self._find_best_ordered()
        if found is None:
            raise InputError(
                "no plan was found that fits the memory of all devices and has all links — give the"
                " devices more memory, or more links"
            )
        return found

    def _find_best_ordered(self) -> FoundPlan | None:
        """Return the best of the best plans, each in the best order that is found.

        While it searches, each plan has one order only, which may hide the better one of two.
        """
        possible = [plan for plan, step_s in self._known.items() if math.isfinite(step_s)]
        best: FoundPlan | None = None
        for plan in sorted(possible, key=self._step_s)[:_FINALISTS]:
            step_s = evaluate_plan(self._problem, plan, self._options.seed).step_s
            if best is None or step_s < best.step_s:
                best = FoundPlan(plan, step_s)
        return best

    def _step_s(self, plan: ModelPlan) -> float:
        if plan not in self._known:
            self._known[plan] = compute_step_s(self._problem, plan)
            # What needs too much memory, or has no link, is known at once.
            self._simulated += math.isfinite(self._known[plan])
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

    def _anneal(self, plan: ModelPlan) -> None:
        """Change a plan again and again."""
        allowed = max(self._options.evaluations // _STARTS, 1)
        last = self._simulated + allowed
        current_s = best_s = self._step_s(plan)
        for tried in range(_TRIES * allowed):
            done = max(1 - (last - self._simulated) / allowed, tried / (_TRIES * allowed))
            if done >= 1:
                return
            change = self._change_randomly(plan)
            step_s = self._step_s(change)
            best_s = min(best_s, step_s)
            heat_s = best_s * _HOT * (_COLD / _HOT) ** done
            if step_s <= current_s or self._rng.random() < math.exp((current_s - step_s) / heat_s):
                plan, current_s = change, step_s

    def _change_randomly(self, plan: ModelPlan) -> ModelPlan:
        """Return a plan with a run of blocks placed elsewhere, mostly a short one."""
        rng, placements = self._rng, plan.placements
        if len(self._micro_batches) > 1 and rng.random() < _RESPLIT:
            return ModelPlan(placements, rng.choice(self._micro_batches))
        first = rng.randrange(len(placements))
        last = first + 1
        while last < len(placements) and rng.random() < _GROWTH:
            last += 1
        elsewhere = (rng.choice(self._placements),) * (last - first)
        return ModelPlan((*placements[:first], *elsewhere, *placements[last:]), plan.micro_batches)
