"""Speed of planned trainings beside the best of the known plans, on drawn continua.

    python benchmarks/plan_speedups.py [SEEDS]

Six models are measured on a core of this machine. Then each is planned on four hosts: equal ones, and
with drawn shares of a core, drawn links, or both. The speeds are those of the simulated steps; what a
step really takes beside them is in `planned_runs.md`. Known plans are the whole model on one host, and
data parallelism with even and proportional shares by a parameter server and by all-reduce.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from planned_runs import MODELS, write_scenario

from laggard.core.cost_model.links import NetworkHop
from laggard.predict.planning.model_plan import build_problem, profile_scenario_model
from laggard.scenario.load import load_scenario
from laggard.workloads.planning.baselines import list_baselines
from laggard.workloads.planning.evaluate_plan import compute_step_s, evaluate_plan
from laggard.workloads.planning.local_search import search_plan
from laggard.workloads.planning.planning_problem import PlanDevice, PlanningProblem

HOSTS, SEEDS = 4, 5
IMAGES = (
    "workload.dataset={name: synthetic, train: 512, test: 64, channels: 3, size: 32, classes: 10}"
)
LARGE = ("vgg11", [IMAGES, "workload.batch_size=64"])


@dataclass(frozen=True)
class Kind:
    """Kind of continuum; the numbers are drawn between the two, by logarithm.

    Attributes:
        name: name in the table.
        shares: shares of a core.
        rates_mbps: rates of links, each pair of hosts one.
        rtts_ms: round trips of links.
    """

    name: str
    shares: tuple[float, float]
    rates_mbps: tuple[float, float]
    rtts_ms: tuple[float, float]


KINDS = (
    Kind("equal", (0.5, 0.5), (200.0, 200.0), (4.0, 4.0)),
    Kind("unequal hosts", (0.1, 1.0), (200.0, 200.0), (4.0, 4.0)),
    Kind("unequal links", (0.5, 0.5), (5.0, 1000.0), (1.0, 40.0)),
    Kind("both unequal", (0.1, 1.0), (5.0, 1000.0), (1.0, 40.0)),
)


def measure_models() -> Mapping[str, PlanningProblem]:
    """Return each model with its measured blocks, on hosts with a whole core each."""
    found = {}
    for model in (*MODELS, LARGE[0]):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "scenario"
            write_scenario(folder, model, "equal")
            overrides = ["heterogeneity.deterministic=[]", *(LARGE[1] if model == LARGE[0] else [])]
            scenario = load_scenario(folder, overrides)
            profile, handling, _ = profile_scenario_model(scenario)
            found[model] = build_problem(scenario, profile, handling)
    return found


def draw_problem(whole: PlanningProblem, kind: Kind, seed: int) -> PlanningProblem:
    """Return a model on drawn hosts and links."""
    rng = random.Random(f"{kind.name} {seed}")

    def draw(ends: tuple[float, float]) -> float:
        return float(ends[0] * (ends[1] / ends[0]) ** rng.random())

    core, shares = whole.devices[0], [draw(kind.shares) for _ in range(HOSTS)]
    links = {}
    for src, dst in itertools.combinations(range(HOSTS), 2):
        rate_mbps, rtt_ms = draw(kind.rates_mbps), draw(kind.rtts_ms)
        for ends in ((src, dst), (dst, src)):
            links[ends] = NetworkHop((f"{ends[0]}", f"{ends[1]}"), rate_mbps, rtt_ms)
    return PlanningProblem(
        whole.blocks,
        whole.edges,
        tuple(
            PlanDevice(
                f"host {number}",
                tuple(each.scaled(1 / share) for each in core.forward),
                tuple(each.scaled(1 / share) for each in core.backward),
                share=share,
            )
            for number, share in enumerate(shares)
        ),
        links,
        whole.batch,
        handling=whole.handling,
    )


def find_speedup(whole: PlanningProblem, kind: Kind, seed: int) -> float:
    """Return how much faster the found plan is than the best known one."""
    problem = draw_problem(whole, kind, seed)
    found = evaluate_plan(problem, search_plan(problem).plan)
    known_s = min(compute_step_s(problem, each) for each in list_baselines(problem).values())
    return known_s / found.step_s


def main() -> None:
    """Print the table."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    models = measure_models()
    print("| model | " + " | ".join(kind.name for kind in KINDS) + " |")
    print("|---" * (len(KINDS) + 1) + "|")
    every: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
    with ProcessPoolExecutor() as pool:
        for model, whole in models.items():
            cells = []
            for kind in KINDS:
                found = sorted(pool.map(find_speedup, repeat(whole), repeat(kind), range(seeds)))
                every[kind.name] += found
                cells.append(f"{statistics.median(found):.2f}x ({found[0]:.2f} to {found[-1]:.2f})")
            print(f"| {model} | " + " | ".join(cells) + " |", flush=True)
    print(
        "| all | "
        + " | ".join(
            f"{statistics.median(found):.2f}x ({min(found):.2f} to {max(found):.2f})"
            for found in every.values()
        )
        + " |"
    )


if __name__ == "__main__":
    main()
