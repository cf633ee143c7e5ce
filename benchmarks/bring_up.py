"""Seconds from `laggard run` to the first training step, by number of hosts.

    python benchmarks/bring_up.py [repeats]

Every host has the same share of the cores, so that no dilation is needed; edge hosts reach the cloud over constrained links; all
promises are measured before training, as always.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HOSTS = (4, 12, 32)
CORES = 1.2
LAYERS = """\
environment:
  job_name: bring-up
  g5k: {{cluster: paravance}}
layers:
  - name: cloud
    services: [{{name: trainer, quantity: {cloud}}}]
  - name: fog
    services: [{{name: trainer, quantity: {fog}}}]
  - name: edge
    services: [{{name: trainer, quantity: {edge}}}]
"""
NETWORK = """\
networks:
  - {src: "edge.*", dst: "fog.*", delay: 5ms, rate: 100mbit, symmetric: true}
  - {src: "edge.*", dst: "cloud.*", delay: 15ms, rate: 50mbit, symmetric: true}
  - {src: "fog.*", dst: "cloud.*", delay: 10ms, rate: 200mbit, symmetric: true}
"""
WORKLOAD = """\
model: mlp
dataset: digits
batch_size: 128
placement: {workers: ["cloud.*", "fog.*", "edge.*"]}
stop: {steps: 3}
"""


def write_scenario(folder: Path, hosts: int) -> Path:
    """A scenario of so many hosts: a quarter cloud, a quarter fog, the rest edge."""
    quarter = hosts // 4
    folder.mkdir()
    layers = LAYERS.format(cloud=quarter, fog=quarter, edge=hosts - 2 * quarter)
    share = f'deterministic:\n  - {{hosts: "*", cpu: {100 * CORES / hosts:.3f}%}}\n'
    files = {
        "layers_services": layers,
        "network": NETWORK,
        "workflow": "[]\n",
        "workload": WORKLOAD,
        "heterogeneity": share,
    }
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def measure(scenario: Path, runs: Path) -> tuple[float, dict[str, float]]:
    """Seconds to the first step, and of every stage."""
    command = [sys.executable, "-m", "laggard.experiments.cli", "run", str(scenario), "--json", "--runs", str(runs)]
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
        scenarios = {hosts: write_scenario(Path(folder) / f"hosts-{hosts}", hosts) for hosts in HOSTS}
        measured = [
            {hosts: measure(s, Path(folder) / "runs") for hosts, s in scenarios.items()} for _ in range(repeats)
        ]
    names = list(measured[0][HOSTS[0]][1])
    print(f"| hosts | to first step, s (median of {repeats}) | {' | '.join(names)} |")
    print("|---" * (len(names) + 2) + "|")
    for hosts in HOSTS:
        total = statistics.median(m[hosts][0] for m in measured)
        stages = [statistics.median(m[hosts][1].get(name, 0.0) for m in measured) for name in names]
        print(f"| {hosts} | {total:.1f} | {' | '.join(f'{s:.2f}' for s in stages)} |")


if __name__ == "__main__":
    main()
