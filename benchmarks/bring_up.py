"""Seconds from `laggard run` to the first training step, by number of hosts.

    python benchmarks/bring_up.py [repeats]

Every host has the same share of the cores, small enough that no dilation is needed. Edge hosts
reach the cloud over constrained links. All fidelity checks run before training, as always.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from three_layers import HOSTS, write_scenario

# Sum of all shares; below the two cores of the machine that was measured.
CORES = 1.2
WORKLOAD = """\
model: mlp
dataset: digits
batch_size: 128
placement: {workers: ["cloud.*", "fog.*", "edge.*"]}
stop: {steps: 3}
"""


def further_files(hosts: int) -> dict[str, str]:
    """Return the scenario files that this benchmark adds."""
    share = f'deterministic:\n  - {{hosts: "*", cpu: {100 * CORES / hosts:.3f}%}}\n'
    return {"workflow": "[]\n", "workload": WORKLOAD, "heterogeneity": share}


def measure(scenario: Path, runs: Path) -> tuple[float, dict[str, float]]:
    """Return seconds to the first step, and seconds of every stage."""
    command = [
        sys.executable,
        "-m",
        "laggard.cli.main",
        "run",
        str(scenario),
        "--json",
        "--runs",
        str(runs),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(done.stderr)
    answer = json.loads(done.stdout)
    if answer.get("status") != "done":
        sys.exit(f"{scenario.name}: {answer.get('error')}")
    return answer["first_step_s"], {stage["name"]: stage["seconds"] for stage in answer["stages"]}


def main() -> None:
    """Print a table of medians."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        scenarios = {
            h: write_scenario(Path(folder) / f"hosts-{h}", h, further_files(h)) for h in HOSTS
        }
        measured = [
            {hosts: measure(s, Path(folder) / "runs") for hosts, s in scenarios.items()}
            for _ in range(repeats)
        ]
    names = list(measured[0][HOSTS[0]][1])
    print(f"| hosts | time to first step, s (median of {repeats}) | {' | '.join(names)} |")
    print("|---" * (len(names) + 2) + "|")
    for hosts in HOSTS:
        total = statistics.median(m[hosts][0] for m in measured)
        stages = [statistics.median(m[hosts][1].get(name, 0.0) for m in measured) for name in names]
        print(f"| {hosts} | {total:.1f} | {' | '.join(f'{s:.2f}' for s in stages)} |")


if __name__ == "__main__":
    main()
