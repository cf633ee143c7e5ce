"""Schedules of Gavel's traces beside the published simulations, and the speed of scheduling.

    python benchmarks/schedules.py GAVEL

GAVEL has the files of https://github.com/stanford-futuredata/gavel (commit c4fa400, MIT):
`physical_cluster_throughputs.json`, `max_min_fairness.trace` and `minimize_makespan.trace`. The
published results were computed with that repository's simulator. Other tables compare shared
devices and large rings with enumerations and bounds. The last table schedules as many
jobs as the trace of Philly has (M. Jeon et al., *Analysis of large-scale multi-tenant GPU clusters
for DNN training workloads*, USENIX ATC 2019): 82,248 in 75 days. They are drawn, not Philly's own.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path

import numpy as np
from networkx import from_numpy_array, is_biconnected

from laggard.jobs.job_trace import read_jobs
from laggard.workloads.scheduling.cluster_jobs import ClusterJob, ClusterState, DeviceType
from laggard.workloads.scheduling.cluster_run import run_cluster
from laggard.workloads.scheduling.device_sharing import share_devices
from laggard.workloads.scheduling.policy import Policy
from laggard.workloads.scheduling.registry import POLICIES, get_policy
from laggard.workloads.scheduling.ring_placement import place_ring

Pairs = dict[tuple[int, int], tuple[float, float]]

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
            result = run_cluster(jobs, TYPES, policy)
            found = (result.completion_s.mean() / HOUR_S, result.makespan_s / HOUR_S)
            cells = " | ".join(
                f"{value:.3f} | {want:.3f} ({100 * (value / want - 1):+.1f} %)"
                for value, want in zip(found, published[name], strict=True)
            )
            print(f"| `{trace}` | {policy.name} | {cells} |", flush=True)


def compare_sharing(folder: Path) -> None:
    """Print what chosen numbers of devices and shared ones bring, beside FIFO as requested."""
    speeds = folder / "physical_cluster_throughputs.json"
    print("\n| trace | policy | completion, h | times shorter | makespan, h | times shorter |")
    print("|---|---|---|---|---|---|")
    for name in PUBLISHED:
        trace = read_jobs(folder / f"{name}.trace", speeds, [each.name for each in TYPES])
        setups = {
            "fifo, as requested": ("fifo", {}),
            "share, without pairs": ("share", {}),
            "share": ("share", trace.pairs),
        }
        first: tuple[float, float] | None = None
        for label, (policy, pairs) in setups.items():
            result = run_cluster(trace.jobs, TYPES, get_policy(policy), None, pairs)
            found = (float(result.completion_s.mean()) / HOUR_S, result.makespan_s / HOUR_S)
            first = first or found
            cells = " | ".join(
                f"{value:.2f} | {base / value:.2f}"
                for value, base in zip(found, first, strict=True)
            )
            print(f"| `{name}` | {label} | {cells} |", flush=True)


def draw_sharing(rng: np.random.Generator, jobs: int, count: int) -> tuple[np.ndarray, Pairs]:
    """Return values of jobs on 0 to `count` devices, and of pairs that share one."""
    power = rng.uniform(0.2, 1.1, (jobs, 1))
    values = rng.uniform(0.5, 2, (jobs, 1)) * np.arange(count + 1) ** power
    values[:, 0] = 0.0
    together = {}
    for first, other in combinations(range(jobs), 2):
        if rng.random() < 0.7:
            kept = rng.uniform(0.4, 1.0, 2)
            together[first, other] = (
                float(values[first, 1] * kept[0]),
                float(values[other, 1] * kept[1]),
            )
    return values, together


def enumerate_sharing(values: np.ndarray, together: Pairs, count: int) -> float:
    """Return the greatest sum over all sets of pairs and all numbers of devices."""
    jobs, best = len(values), 0.0
    for size in range(jobs // 2 + 1):
        for pairs in combinations(together, size):
            paired = {job for pair in pairs for job in pair}
            if len(paired) < 2 * size or size > count:
                continue
            single = [job for job in range(jobs) if job not in paired]
            numbers = np.array([*product(range(count - size + 1), repeat=len(single))], dtype=int)
            numbers = numbers[numbers.sum(axis=1) <= count - size]
            alone = values[single, numbers].sum(axis=1).max() if single else 0.0
            best = max(best, float(alone) + sum(sum(together[pair]) for pair in pairs))
    return best


def compare_with_enumeration(rng: np.random.Generator, cases: int = 200) -> None:
    """Print how shared devices compare with the best of all ways to share them."""
    parts = []
    for _ in range(cases):
        jobs, count = int(rng.integers(2, 7)), int(rng.integers(1, 7))
        values, together = draw_sharing(rng, jobs, count)
        found = share_devices(values, together, count).total
        parts.append(found / enumerate_sharing(values, together, count))
    print("\n| drawn cases | least part of the best | as good as the best |\n|---|---|---|")
    exact = sum(part > 1 - 1e-9 for part in parts)
    print(f"| {cases}, up to 6 jobs and 6 devices | {min(parts):.6f} | {exact} |", flush=True)


def compare_large_rings(rng: np.random.Generator, cases: int = 20) -> None:
    """Print the slowest links of rings of 64 devices, relative to a bound that no ring exceeds.

    A ring needs a graph in which no single device connects two parts.
    """
    parts = []
    for _ in range(cases):
        node = np.repeat(np.arange(8), 8)
        near = node[:, None] == node[None, :]
        rates = np.where(
            near, rng.choice([25.0, 50.0, 0.0], (64, 64)), rng.uniform(1, 12, (64, 64))
        )
        rates = np.triu(rates, 1) + np.triu(rates, 1).T
        levels = np.unique(rates[rates > 0])
        above = bisect_left(
            levels, True, key=lambda level: not is_biconnected(from_numpy_array(rates >= level))
        )
        parts.append(place_ring(rates, 64).rate / levels[above - 1])
    print("\n| drawn topologies of 64 devices | least part of the bound | mean |\n|---|---|---|")
    print(f"| {cases} | {min(parts):.3f} | {np.mean(parts):.3f} |", flush=True)


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
        result = run_cluster(jobs, types, POLICIES[name])
        print(
            f"| {name} | {len(jobs):,} | {result.rounds:,} | {result.allocations:,} |"
            f" {time.process_time() - began_s:.0f} | {result.completion_s.mean() / HOUR_S:.2f} |",
            flush=True,
        )


def main() -> None:
    """Print all tables."""
    folder = Path(sys.argv[1])
    compare_traces(folder)
    compare_sharing(folder)
    compare_with_enumeration(np.random.default_rng(1))
    compare_large_rings(np.random.default_rng(1))
    time_programs(np.random.default_rng(1))
    time_philly(np.random.default_rng(1))


if __name__ == "__main__":
    main()
