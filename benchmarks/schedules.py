"""Schedules of Gavel's traces beside the published simulations, and the speed of scheduling.

    python benchmarks/schedules.py GAVEL

GAVEL has the files of https://github.com/stanford-futuredata/gavel (commit c4fa400, MIT):
`physical_cluster_throughputs.json`, `max_min_fairness.trace` and `minimize_makespan.trace`. The
published results were computed with that repository's simulator. The last table schedules as many
jobs as the trace of Philly has (M. Jeon et al., *Analysis of large-scale multi-tenant GPU clusters
for DNN training workloads*, USENIX ATC 2019): 82,248 in 75 days. They are drawn, not Philly's own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from laggard.jobs.job_trace import read_jobs
from laggard.workloads.scheduling.cluster_jobs import ClusterJob, ClusterState, DeviceType
from laggard.workloads.scheduling.cluster_simulation import simulate_cluster
from laggard.workloads.scheduling.policy import Policy
from laggard.workloads.scheduling.registry import POLICIES, get_policy

TYPES = (DeviceType("v100", 8, 2.48), DeviceType("p100", 16, 1.46), DeviceType("k80", 24, 0.45))
HOUR_S = 3600.0
PUBLISHED: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "max_min_fairness": {
        "fifo": (9.847, 53.327),
        "las": (5.196, 19.703),
        "max_min_fairness": (3.824, 17.109),
        "finish_time_fairness": (3.936, 17.176),
        "makespan": (5.942, 16.248),
        "sum_throughput": (4.352, 17.624),
    },
    "minimize_makespan": {
        "fifo": (47.248, 70.378),
        "las": (9.220, 22.427),
        "max_min_fairness": (9.263, 18.637),
        "finish_time_fairness": (9.371, 19.092),
        "makespan": (17.047, 17.405),
        "sum_throughput": (9.334, 22.304),
    },
}
"""Hours of the mean completion and of the makespan, by trace and policy."""

PHILLY_JOBS, PHILLY_DAYS = 82_248, 75
PHILLY_SCALES, PHILLY_PARTS = (1, 2, 4, 8), (0.84, 0.05, 0.06, 0.05)
"""Devices of a job, and the parts of the jobs that need them: most of Philly's jobs use one."""


class AllOnFirst:
    """Every job gets all of the first type, in turns.

    The published `fifo` has nearly the results of this for `minimize_makespan.trace`, but not for
    `max_min_fairness.trace`.
    """

    name, aware, in_turn = "all on the first type", True, True

    def allocate(self, state: ClusterState) -> np.ndarray:
        """Return ones for the first type."""
        allocation = np.zeros_like(state.throughput)
        allocation[:, 0] = 1.0
        return allocation


def compare_traces(folder: Path) -> None:
    """Print the table of both traces."""
    speeds = folder / "physical_cluster_throughputs.json"
    print("| trace | policy | completion, h | published | makespan, h | published |")
    print("|---|---|---|---|---|---|")
    for trace, published in PUBLISHED.items():
        jobs = read_jobs(folder / f"{trace}.trace", speeds, [each.name for each in TYPES]).jobs
        policies: list[tuple[Policy, str]] = [(get_policy(name), name) for name in published]
        for policy, name in [*policies, (AllOnFirst(), "fifo")]:
            result = simulate_cluster(jobs, TYPES, policy)
            found = (result.completion_s.mean() / HOUR_S, result.makespan_s / HOUR_S)
            cells = " | ".join(
                f"{value:.3f} | {want:.3f} ({100 * (value / want - 1):+.1f} %)"
                for value, want in zip(found, published[name], strict=True)
            )
            print(f"| `{trace}` | {policy.name} | {cells} |", flush=True)


def draw_state(rng: np.random.Generator, jobs: int, kinds: int) -> ClusterState:
    """Return jobs of a number of kinds."""
    speeds = rng.lognormal(0, 1, (kinds, len(TYPES)))
    scales = rng.choice([1, 2, 4], kinds)
    chosen = np.arange(jobs) % kinds
    types = [DeviceType(each.name, jobs // 8, each.price_per_hour) for each in TYPES]
    return ClusterState.at_start(
        [
            ClusterJob(
                str(number),
                100,
                dict(zip((each.name for each in types), speeds[kind], strict=True)),
                int(scales[kind]),
            )
            for number, kind in enumerate(chosen)
        ],
        types,
    )


def time_programs(rng: np.random.Generator) -> None:
    """Print the seconds of one allocation of many jobs."""
    print("\n| jobs | different ones | seconds of an allocation |\n|---|---|---|")
    for jobs, kinds in ((1_000, 1_000), (10_000, 10_000), (100_000, 80)):
        state = draw_state(rng, jobs, kinds)
        began_s = time.perf_counter()
        get_policy("max_min_fairness").allocate(state)
        print(f"| {jobs:,} | {kinds:,} | {time.perf_counter() - began_s:.2f} |", flush=True)


def draw_philly(rng: np.random.Generator) -> tuple[Sequence[ClusterJob], Sequence[DeviceType]]:
    """Return as many jobs as Philly had, of 80 kinds, and a cluster that they keep busy."""
    types = [DeviceType("v100", 400), DeviceType("p100", 800), DeviceType("k80", 1290)]
    speeds = rng.lognormal(0, 0.3, (80, 1)) * np.array([[1.0, 0.5, 0.25]])
    arrivals = np.sort(rng.uniform(0, PHILLY_DAYS * 86_400, PHILLY_JOBS))
    hours = np.minimum(rng.lognormal(-0.5, 2.0, PHILLY_JOBS), 24 * 14)
    kinds = rng.integers(0, 80, PHILLY_JOBS)
    scales = rng.choice(PHILLY_SCALES, PHILLY_JOBS, p=PHILLY_PARTS)
    names = [each.name for each in types]
    jobs = [
        ClusterJob(
            str(number),
            max(1, int(hours[number] * HOUR_S * speeds[kinds[number], 0])),
            dict(zip(names, speeds[kinds[number]], strict=True)),
            int(scales[number]),
            float(arrivals[number]),
        )
        for number in range(PHILLY_JOBS)
    ]
    return jobs, types


def time_philly(rng: np.random.Generator) -> None:
    """Print the processor seconds of scheduling as many jobs as Philly had."""
    jobs, types = draw_philly(rng)
    print("\n| policy | jobs | rounds | allocations | CPU s | completion, h |")
    print("|---|---|---|---|---|---|")
    for name in ("las", "max_min_fairness"):
        began_s = time.process_time()
        result = simulate_cluster(jobs, types, POLICIES[name])
        print(
            f"| {name} | {len(jobs):,} | {result.rounds:,} | {result.allocations:,} |"
            f" {time.process_time() - began_s:.0f} | {result.completion_s.mean() / HOUR_S:.2f} |",
            flush=True,
        )


def main() -> None:
    """Print all tables."""
    compare_traces(Path(sys.argv[1]))
    rng = np.random.default_rng(1)
    time_programs(rng)
    time_philly(rng)


if __name__ == "__main__":
    main()
