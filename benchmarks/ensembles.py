"""Ensembles of neighbors beside single devices, in `experiments/edge_ensemble` with several seeds.

    python benchmarks/ensembles.py RUNS [SEEDS]

A seed has its own weights, samples and requests. Every run is emulated: five devices with a fifth
of a core each, of which the fifth has a slow link.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SCENARIO = Path(__file__).resolve().parent.parent / "experiments" / "edge_ensemble"
SEEDS = 5
CASES: Mapping[str, str] = {
    "alone": "null",
    "1 neighbor": "{ask: 1, budget: 150ms}",
    "2 neighbors": "{ask: 2, budget: 150ms}",
    "4 neighbors": "{ask: 4, budget: 150ms}",
    "4 neighbors, 1 s": "{ask: 4, budget: 1s}",
}


def serve(ensemble: str, seed: int, runs: Path) -> Mapping[str, float]:
    """Return accuracy, latencies and number of answers of a run, as means of its devices."""
    words = [
        *(sys.executable, "-m", "laggard", "run", str(SCENARIO), "--json", "--no-report"),
        *(f"--runs={runs}", f"--set=workload.ensemble={ensemble}", f"--set=workload.seed={seed}"),
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    folder = Path(json.loads(done.stdout)["folder"])
    devices = json.loads((folder / "serving.json").read_text())["devices"]

    def mean(*keys: str) -> float:
        values = []
        for device in devices:
            value = device
            for key in keys:
                value = value[key]
            values.append(float(value))
        return statistics.mean(values)

    return {
        "accuracy": mean("accuracy"),
        "median_s": mean("latency_s", "50"),
        "late_s": mean("latency_s", "99"),
        "answers": mean("answers"),
    }


def main() -> None:
    """Print a row for every number of neighbors."""
    runs = Path(sys.argv[1])
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else SEEDS
    found: dict[str, list[Mapping[str, float]]] = {case: [] for case in CASES}
    for seed in range(1, seeds + 1):
        for case, ensemble in CASES.items():
            found[case].append(serve(ensemble, seed, runs))
    print("| asked | accuracy of each seed | mean | median latency | 99th percentile | answers |")
    print("|---|---|---|---|---|---|")
    for case, results in found.items():
        accuracies = [each["accuracy"] for each in results]
        medians, late = ([each[key] for each in results] for key in ("median_s", "late_s"))
        print(
            f"| {case} | {', '.join(f'{each:.1%}' for each in accuracies)} |"
            f" {statistics.mean(accuracies):.1%} | {1e3 * statistics.mean(medians):.0f} ms |"
            f" {1e3 * statistics.mean(late):.0f} ms |"
            f" {statistics.mean(each['answers'] for each in results):.2f} |"
        )


if __name__ == "__main__":
    main()
