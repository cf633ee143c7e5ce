"""Delay until the fidelity monitor reports that cores are taken from a run or an emulation.

    python benchmarks/fidelity_monitor.py [SCENARIO]

It needs root. On every core a busy loop runs 60 % of the time, with a real-time priority above the
workers' and below the emulator's. Use an otherwise idle machine. The run and the emulation must
both end with status 3 and name the starved hosts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from laggard.network_emulation.compute.cpu_plan import usable_cores

SCENARIO = Path(__file__).parent.parent / "experiments" / "quickstart"
# Above the workers' real-time priority and below the emulator's.
PRIORITY = 5
BUSY_S, IDLE_S = 0.06, 0.04
TIMEOUT_S = 120.0
# The loop ends with its parent, so that no real-time process is left behind.
LOOP = f"""
import os, sys, time
os.sched_setaffinity(0, {{int(sys.argv[1])}})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param({PRIORITY}))
while os.getppid() == int(sys.argv[2]):
    until = time.monotonic() + {BUSY_S}
    while time.monotonic() < until:
        pass
    time.sleep({IDLE_S})
"""
COMPUTE = "while True: pass"
STEPS = ("--set", "workload.stop.steps=100000", "--set", "workload.stop.time=20s")


@contextmanager
def occupy_cores() -> Iterator[None]:
    """Run a busy loop on every core."""
    parent = str(os.getpid())
    started = [
        subprocess.Popen([sys.executable, "-c", LOOP, str(core), parent]) for core in usable_cores()
    ]
    try:
        yield
    finally:
        for loop in started:
            loop.kill()
            loop.wait()


def start(command: str, runs: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command of Laggard."""
    words = [sys.executable, "-m", "laggard.cli.main", command, "--runs", str(runs), *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_file(process: subprocess.Popen[str], runs: Path, pattern: str) -> Path:
    """Wait for a file of the run folder that is not empty."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := [path for path in runs.glob(pattern) if path.stat().st_size]):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            sys.exit(
                f"the run ended or timed out without {pattern}; its output:\n"
                f"{''.join(process.communicate())}"
            )
        time.sleep(0.05)
    return found[0]


def format_violations(violations: list[dict[str, object]]) -> str:
    """Format kind, place and time of violations."""
    return "; ".join(
        f"{each['kind']} {each['where']} from {each['first_s']} to {each['last_s']} s"
        for each in violations
    )


def measure_run(scenario: Path, runs: Path) -> str:
    """Run with the cores occupied from the first step on, and return a table row."""
    process = start("run", runs, str(scenario), "--json", *STEPS)
    wait_for_file(process, runs, "*/*/workers/progress.jsonl")
    with occupy_cores():
        began = time.monotonic()
        output, _ = process.communicate(timeout=TIMEOUT_S + 120)
    ended_s = time.monotonic() - began
    answer = json.loads(output)
    violations = json.loads((Path(answer["folder"]) / "fidelity_violations.json").read_text())
    return (
        f"| run | {answer['status']}, {process.returncode} | {ended_s:.1f} (its end) |"
        f" {format_violations(violations)} |"
    )


def measure_emulation(scenario: Path, runs: Path) -> str:
    """Emulate while a program computes on occupied cores, and return a table row."""
    process = start("emulate", runs, str(scenario), "--json")
    assert process.stdout is not None
    up = json.loads(process.stdout.readline() or '{"hosts": []}')
    if not up["hosts"]:
        sys.exit(f"the emulation did not start; its output:\n{''.join(process.communicate())}")
    program = start("ssh", runs, up["hosts"][0]["name"], sys.executable, "-c", COMPUTE)
    with occupy_cores():
        began = time.monotonic()
        told = json.loads(process.stdout.readline())
        told_s = time.monotonic() - began
    process.terminate()
    output, _ = process.communicate(timeout=TIMEOUT_S)
    program.communicate(timeout=TIMEOUT_S)
    ended = json.loads(output.splitlines()[-1])
    return (
        f"| emulation | {ended['status']}, {process.returncode} | {told_s:.1f} |"
        f" {format_violations(told['violations'])} |"
    )


def main() -> None:
    """Print a table."""
    scenario = Path(sys.argv[1]) if len(sys.argv) > 1 else SCENARIO
    print("| subject | final status | reported after, s | violations |")
    print("|---|---|---|---|")
    for measure in (measure_run, measure_emulation):
        with tempfile.TemporaryDirectory() as folder:
            print(measure(scenario, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
