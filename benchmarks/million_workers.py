"""Seconds and memory of `laggard simulate` with a million workers, by strategy.

    python benchmarks/million_workers.py

Each strategy is simulated once, in a process of its own. `million_workers.md` has the results of
the last run.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from laggard.core.simulation.strategies.catalog import STRATEGIES

SCENARIO = Path(__file__).parent.parent / "experiments" / "million_edge_devices"
WORKERS, STEPS = 1_000_000, 100
EQUAL = 'heterogeneity.deterministic=[{hosts: "*", cpu: 10%}]'
"""Override for `hierarchical`, whose tiers must have equal workers."""


def main() -> None:
    """Print the table."""
    print(f"{WORKERS:,} workers, {STEPS} steps\n")
    print("| strategy | step | efficiency | seconds | GiB |\n|---|---|---|---|---|")
    for strategy in STRATEGIES:
        began_s = time.monotonic()
        printed = subprocess.run(
            [
                *(sys.executable, "-m", "laggard", "simulate", str(SCENARIO), "--json"),
                *("--scale", f"edge={WORKERS}", "--steps", str(STEPS)),
                *("--set", f"workload.strategy={strategy}"),
                *(("--set", EQUAL) if strategy == "hierarchical" else ()),
            ],
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        took_s = time.monotonic() - began_s
        scale = json.loads(printed)["scales"][-1]
        # The largest of all children so far, so strategies that need less are not told apart.
        gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(
            f"| `{strategy}` | {scale['step_s']:.4g} s | {scale['efficiency']:.2%} | {took_s:.1f}"
            f" | {gib:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
