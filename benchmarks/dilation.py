"""Step times and findings of the same scenario at D = 1, 2 and 8.

    python benchmarks/dilation.py [repeats]

Links have no loss, and shares fit the cores at D = 1. Runs of the factors alternate. Time dilation
must give the same step times (medians within 3 %) and the same stragglers.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

FACTORS = (1, 2, 8)
FILES = {
    "layers_services": (
        """\
environment: {job_name: dilation, g5k: {cluster: paravance}}
layers:
  - {name: cloud, services: [{name: trainer, quantity: 2}]}
  - {name: edge, services: [{name: trainer, quantity: 2}]}
"""
    ),
    "network": (
        """\
networks:
  - {src: "cloud.*", dst: "edge.*", delay: 10ms, rate: 50mbit, symmetric: true}
"""
    ),
    "workflow": "[]\n",
    "heterogeneity": (
        """\
deterministic:
  - {hosts: "cloud.*", cpu: 30%}
  - {hosts: "edge.*", cpu: 12%}
dynamic:
  - {at: 5s, for: 10s, src: "cloud.*", dst: "edge.*", rate: 8mbit, symmetric: true}
"""
    ),
    "workload": (
        """\
model: resnet8
dataset: digits
batch_size: 128
evaluate_every: 100000
stop: {steps: 60}
"""
    ),
}


def run(scenario: Path, runs: Path, factor: int) -> tuple[list[float], list[str], str]:
    """Run once; return step times in virtual ms, formatted findings, and the status."""
    import pyarrow.parquet as pq

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
    done = subprocess.run(
        [*command, "--dilation", str(factor)], capture_output=True, text=True, check=False
    )
    answer = json.loads(done.stdout)
    if answer["status"] != "done":
        return [], [], f"{answer['status']}: {answer['error']}"
    spans = pq.read_table(
        Path(answer["folder"]) / "spans.parquet", columns=["step", "start_ns"]
    ).to_pandas()
    begins = spans.groupby("step").start_ns.min().sort_index()
    # The first steps warm up and are left out.
    times = [float(value) / 1e6 for value in begins.diff().iloc[4:]]
    found = sorted(
        f"{f['family']} {f['kind']} {f['host'] or f['link'] or 'collective'} {f['slowdown']:.1f}x"
        for f in answer["stragglers"]
        if not f["masked"]
    )
    return times, found, "done"


def main() -> None:
    """Print a table, and the findings at each factor."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    times: dict[int, list[float]] = defaultdict(list)
    found: dict[int, list[list[str]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        scenario = Path(name) / "dilation"
        scenario.mkdir()
        for file, text in FILES.items():
            (scenario / f"{file}.yaml").write_text(text)
        for _ in range(repeats):
            for factor in FACTORS:
                steps, findings, status = run(scenario, Path(name) / "runs", factor)
                times[factor] += steps
                found[factor].append(findings or [status])
                print(f"D = {factor}: {status.splitlines()[0]}", flush=True)
    print(
        "| D | step time, virtual ms: p10 | p50 | p90 | p50 against D = 1 |\n|---|---|---|---|---|"
    )
    for factor in [factor for factor in FACTORS if times[factor]]:
        cuts = statistics.quantiles(times[factor], n=10, method="inclusive")
        ratio = statistics.median(times[factor]) / statistics.median(times[FACTORS[0]])
        print(
            f"| {factor} | {cuts[0]:.1f} | {statistics.median(times[factor]):.1f} | {cuts[8]:.1f} |"
            f" {ratio:.3f} |"
        )
    for factor in FACTORS:
        for findings in found[factor]:
            print(f"D = {factor}: {'; '.join(findings)}")


if __name__ == "__main__":
    main()
