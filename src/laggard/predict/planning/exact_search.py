"""The best plan and order of its tasks by constraint programming, with a proof of how good it is.

The solver is CP-SAT (L. Perron, F. Didier, S. Gay, "The CP-SAT-LP solver", CP 2023). It chooses a
placement for every block and a time for every task of `step_tasks.py` at once. A plan from a local
search is the horizon and a hint. Two searches share what they learn: one with linear relaxations,
which finds good bounds where memory is scarce, and one without, which is faster elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.core.errors import InputError
from laggard.predict.planning.exact_model import ExactModel
from laggard.workloads.planning.evaluate_plan import EvaluatedPlan, evaluate_plan
from laggard.workloads.planning.local_search import FoundPlan
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan
from laggard.workloads.planning.planning_problem import PlanningProblem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


@dataclass(frozen=True)
class ExactPlan:
    """Plan with a proof.

    Attributes:
        evaluated: its step, in the order that was found.
        bound_s: no plan with these placements and as many micro-batches has a shorter step.
        is_optimal: whether the bound equals the step.
        searched_s: seconds of the search.
    """

    evaluated: EvaluatedPlan
    bound_s: float
    is_optimal: bool
    searched_s: float

    @property
    def plan(self) -> ModelPlan:
        """Return the plan."""
        return self.evaluated.plan

    @property
    def step_s(self) -> float:
        """Return the seconds of a step."""
        return self.evaluated.step_s

    def format_certificate(self) -> str:
        """Format the proof as a sentence."""
        if self.is_optimal:
            return (
                f"Optimal: no plan of these placements has a step below {self.bound_s:.4g} s"
                f" (proven in {self.searched_s:.1f} s)."
            )
        gap = self.step_s / self.bound_s - 1 if self.bound_s > 0 else math.inf
        return (
            f"At most {100 * gap:.1f} % above the optimum: no plan of these placements has a step"
            f" below {self.bound_s:.4g} s ({self.searched_s:.1f} s of search)."
        )


def find_exact_plan(
    problem: PlanningProblem,
    placements: Sequence[BlockPlacement],
    found: FoundPlan,
    limit_s: float = 10.0,
) -> ExactPlan:
    """Search the best plan of given placements, with as many micro-batches as a known plan.

    Args:
        problem: the model and the continuum.
        placements: placements that every block may have.
        found: a plan of them.
        limit_s: seconds after which the best plan so far is returned.

    Raises:
        InputError: ortools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise InputError(
            "an exact search needs ortools, which is not installed — pip install 'laggard[plan]'"
        ) from error
    model = ExactModel(problem, tuple(placements), found)
    solver = _create_solver(limit_s)
    status = solver.solve(model.model)
    bound_s = max(solver.best_objective_bound, 0.0) * model.unit_s
    evaluated = evaluate_plan(problem, found.plan)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        exact = model.evaluate(solver)
        if exact.step_s < evaluated.step_s:
            evaluated = exact
    return ExactPlan(evaluated, bound_s, status == cp_model.OPTIMAL, solver.wall_time)


def _create_solver(limit_s: float) -> cp_model.CpSolver:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = limit_s
    parameters.random_seed = 1
    # By default the second of two workers would search for plans only, and prove nothing.
    parameters.subsolvers.extend(["no_lp", "default_lp"])
    parameters.num_workers = parameters.num_full_subsolvers = 2
    parameters.shared_tree_num_workers = 0
    return solver
