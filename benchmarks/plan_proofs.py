"""Plans of generated models: the exact search beside trying everything, and the local search.

    python benchmarks/plan_proofs.py [SEEDS]

Models of three to five blocks on three unequal devices have seven placements for each block: a
device alone, or all of them with even or proportional shares and a server or an all-reduce. There
every plan is tried, in every order of its tasks (`tests/workloads/planning/generated_problems.py`).
Models of 8 to 12 blocks are planned by the local search and by the exact one, which has ten seconds
for a proof. One half of each number of blocks has limited memory: there trying everything would need
to know it too, so these are among the larger models only.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from laggard.predict.planning.exact_search import find_exact_plan
from laggard.workloads.planning.local_search import SearchOptions, search_plan
from tests.workloads.planning.generated_problems import (
    find_optimum,
    generate_problem,
    list_few_placements,
)

SMALL, LARGE = (3, 4, 5), (8, 10, 12)
SEEDS = 20
PROOF_S = 10.0
SAME = 1e-4
"""Largest part by which equal times differ: the exact search counts in units of time."""


@dataclass(frozen=True)
class Solved:
    """A model with its plans.

    Attributes:
        local_s: seconds of a step by the local search, in the best order that is found.
        exact_s: seconds of a step by the exact search.
        bound_s: proven least seconds of a step.
        is_optimal: whether the exact search has proven its plan.
        searched_s: seconds of the exact search.
        tried_s: least seconds of a step by trying everything; None if that was not done.
        tried_in_s: seconds of trying everything.
    """

    local_s: float
    exact_s: float
    bound_s: float
    is_optimal: bool
    searched_s: float
    tried_s: float | None
    tried_in_s: float


def solve(blocks: int, seed: int) -> Solved:
    """Plan a generated model."""
    is_large = blocks in LARGE
    problem = generate_problem(seed, blocks, memory=is_large and seed % 2 == 1)
    placements = list_few_placements(problem)
    found = search_plan(problem, SearchOptions(placements=placements, micro_batches=(1,)))
    exact = find_exact_plan(problem, placements, found, PROOF_S if is_large else 60.0)
    begin_s = time.monotonic()
    tried_s = None if is_large else find_optimum(problem, placements)
    return Solved(
        found.step_s,
        exact.step_s,
        exact.bound_s,
        exact.is_optimal,
        exact.searched_s,
        tried_s,
        time.monotonic() - begin_s,
    )


def main() -> None:
    """Print the table."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    print(
        "| blocks | models | same as trying everything | proven | seconds of the proof: median, most"
        " | local search above the exact one: median, most | above the bound, most |"
    )
    print("|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor() as pool:
        for blocks in (*SMALL, *LARGE):
            # A search for a proof uses two cores; only the small models are solved side by side.
            run = map if blocks in LARGE else pool.map
            solved = list(run(solve, [blocks] * seeds, range(seeds)))
            tried = [each for each in solved if each.tried_s is not None]
            same = sum(abs(each.exact_s / (each.tried_s or 1) - 1) <= SAME for each in tried)
            proofs_s = [each.searched_s for each in solved]
            gaps = [each.local_s / each.exact_s - 1 for each in solved]
            bounds = [
                each.local_s / each.bound_s - 1 if each.bound_s else math.inf for each in solved
            ]
            print(
                f"| {blocks} | {seeds} | {same if tried else '—'}"
                f" | {sum(each.is_optimal for each in solved)}"
                f" | {statistics.median(proofs_s):.2f}, {max(proofs_s):.1f}"
                f" | {statistics.median(gaps):.2%}, {max(gaps):.2%} | {max(bounds):.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
