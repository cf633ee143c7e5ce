"""Cost and fidelity of a hundred hosts on one machine.

    python benchmarks/hundred_hosts.py [hosts]

Most hosts are at the edge; there are ten fog sites. It prints seconds to the first step, memory,
processor time and fidelity.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import psutil

FOG_SITES = 10
CLOUD = 4
SERVICES = """\
environment: {{job_name: scale, g5k: {{cluster: paravance}}}}
layers:
  - name: cloud
    services: [{{name: trainer, quantity: {cloud}}}]
  - name: fog
    services:
{sites}
  - name: edge
    services: [{{name: trainer, quantity: {edge}}}]
"""
FILES = {
    "network": (
        """\
networks:
  - {src: "edge.*", dst: "fog.*", delay: 5ms, rate: 50mbit, symmetric: true}
  - {src: "edge.*", dst: "cloud.*", delay: 15ms, rate: 20mbit, symmetric: true}
  - {src: "fog.*", dst: "cloud.*", delay: 10ms, rate: 100mbit, symmetric: true}
  - {src: "fog.*", dst: "fog.*", delay: 8ms, rate: 100mbit}
  - {src: "edge.*", dst: "edge.*", delay: 12ms, rate: 20mbit}
"""
    ),
    "workflow": "[]\n",
    "heterogeneity": (
        """\
deterministic:
  - {hosts: "cloud.*", cpu: 40%}
  - {hosts: "fog.*", cpu: 20%}
  - {hosts: "edge.*", cpu: 5%}
"""
    ),
    "workload": (
        """\
model: mlp
dataset: digits
batch_size: 800
evaluate_every: 100000
stop: {steps: 5}
"""
    ),
}


class Sampler(threading.Thread):
    """Sampler of a run's processes: peak memory (proportional set size) and processor time."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.ended = threading.Event()
        self.peak_mib: dict[str, float] = {}
        self.peak_total_mib = 0.0
        self.workers = 0
        self.cpu_s: dict[str, float] = {}

    def run(self) -> None:
        """Sample every few seconds until `ended`."""
        while not self.ended.wait(3.0):
            found: dict[str, list[float]] = defaultdict(list)
            with contextlib.suppress(psutil.Error, OSError):
                for process in psutil.Process(self._pid).children(recursive=True):
                    # A process may end while it is being read.
                    with contextlib.suppress(psutil.Error, OSError):
                        # The processes `rank-0`, `rank-1` and so on are of one kind.
                        kind = process.name().rstrip("0123456789").rstrip("-")
                        size_mib = pss_mib(process.pid)
                        found[kind].append(size_mib)
                        times = process.cpu_times()
                        self.cpu_s[f"{kind} {process.pid}"] = times.user + times.system
            for kind, sizes in found.items():
                self.peak_mib[kind] = max(self.peak_mib.get(kind, 0.0), *sizes)
            self.workers = max(self.workers, len(found.get("rank", ())))
            self.peak_total_mib = max(self.peak_total_mib, sum(map(sum, found.values())))


def pss_mib(pid: int) -> float:
    """Return the proportional set size of a process."""
    # Each shared page counts in parts, so that the sizes of all processes add up.
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def write(folder: Path, hosts: int) -> Path:
    """Write the scenario with so many hosts."""
    sites = "\n".join(f"      - {{name: site{i}, quantity: 1}}" for i in range(1, FOG_SITES + 1))
    services = SERVICES.format(cloud=CLOUD, sites=sites, edge=hosts - CLOUD - FOG_SITES)
    folder.mkdir()
    for name, text in {"layers_services": services, **FILES}.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def main() -> int:
    """Run once and print the results."""
    hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as name:
        scenario = write(Path(name) / "hundred", hosts)
        command = [sys.executable, "-m", "laggard.cli.main", "run", str(scenario), "--json"]
        began = time.monotonic()
        run = subprocess.Popen(
            [*command, "--runs", f"{name}/runs"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        sampler = Sampler(run.pid)
        sampler.start()
        output, errors = run.communicate()
        took_s = time.monotonic() - began
        sampler.ended.set()
        sampler.join()
    if not output:
        print(errors)
        return 1
    answer = json.loads(output)
    print(f"{hosts} hosts: {answer['status']} after {took_s:.0f} s {answer['error'] or ''}")
    print(f"dilation {answer['dilation']:.1f}; first step after {answer['first_step_s']} s")
    print(
        "stages, s: "
        + ", ".join(f"{stage['name']} {stage['seconds']:.1f}" for stage in answer["stages"])
    )
    checks = answer["fidelity"] or []
    for kind in ("rtt", "rate", "cpu"):
        of = [check for check in checks if check["kind"] == kind]
        errors_of = [
            abs(check["measured"] - check["requested"]) / max(check["requested"], 1e-9)
            for check in of
        ]
        if of:
            print(
                f"{kind}: {len(of)} checks, {sum(not c['ok'] for c in of)} out of tolerance,"
                f" worst error {100 * max(errors_of):.1f} %"
            )
    print(
        f"memory: {sampler.peak_total_mib:.0f} MiB in total (PSS), {sampler.workers} workers of at"
        f" most {sampler.peak_mib.get('rank', 0):.0f} MiB"
    )
    for kind, cpu_s in sorted(sampler.cpu_s.items(), key=lambda item: -item[1])[:6]:
        print(f"processor time: {kind}: {cpu_s:.1f} s")
    if answer["outcome"]:
        print(
            f"{answer['outcome']['steps']} steps in {answer['outcome']['makespan_s']:.1f} virtual s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
