"""Remains of a run after `kill -9` of a random process at a random moment.

    python benchmarks/killing.py [moments]

Processes, cgroups, mounts, network devices and namespaces are checked a few seconds after each
kill.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from laggard.run_folder.store import list_runs

SCENARIO = Path(__file__).parent.parent / "experiments" / "quickstart"
LONGEST_S = 15.0
PATIENCE_S = 10.0


def processes_of(run: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the run's process tree."""
    root = psutil.Process(run.pid)
    return [root, *root.children(recursive=True)]


def machine_state() -> tuple[str, list[str], list[str]]:
    """Return mounts, network devices and named namespaces of this machine."""
    names = Path("/run/netns")
    devices = sorted(entry.name for entry in Path("/sys/class/net").iterdir())
    return (
        Path("/proc/self/mountinfo").read_text(),
        devices,
        sorted(entry.name for entry in names.iterdir()) if names.is_dir() else [],
    )


def left_behind(
    processes: list[psutil.Process], pid: int, before: tuple[str, list[str], list[str]]
) -> list[str]:
    """Return what is left of a run, after up to `PATIENCE_S` seconds of waiting."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        # A zombie holds no resources: only its parent has not collected it yet.
        alive = [
            p.name() for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE
        ]
        groups = [str(p) for p in Path("/sys/fs/cgroup").glob(f"**/laggard-{pid}-*")]
        changed = [] if machine_state() == before else ["mounts, devices or namespaces changed"]
        left = [*alive, *groups, *changed]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def strike(seed: int, runs: Path) -> str:
    """Run once, kill one process, and return a table row."""
    chance = random.Random(seed)
    before = machine_state()
    command = [
        sys.executable,
        "-m",
        "laggard.cli.main",
        "run",
        str(SCENARIO),
        "--json",
        "--runs",
        str(runs),
    ]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    moment_s = chance.uniform(0.1, LONGEST_S)
    time.sleep(moment_s)
    processes = processes_of(run)
    victim = chance.choice(processes)
    name = victim.name()
    victim.kill()
    killed = time.monotonic()
    run.wait(timeout=600)
    left = left_behind(processes, run.pid, before)
    gone_s = time.monotonic() - killed
    records = list_runs(runs)
    status = records[-1][0].status if records else "no run folder yet"
    return (
        f"| {seed} | {moment_s:.1f} | {name} | {status} | {', '.join(left) or 'nothing'} |"
        f" {gone_s:.1f} |"
    )


def main() -> None:
    """Print a table with one row per kill."""
    moments = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(
        "| seed | killed after, s | process | status in run folder | left behind |"
        " all processes ended after, s |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(moments):
            print(strike(seed, Path(folder) / str(seed)), flush=True)


if __name__ == "__main__":
    main()
