"""Runs to which something happens at a random moment, and what is true afterwards.

    python benchmarks/faults.py signals 100
    python benchmarks/faults.py kills 100
    python benchmarks/faults.py writes 100
    python benchmarks/faults.py command 10
    python benchmarks/faults.py folders 300
    python benchmarks/faults.py traces 100
    python benchmarks/faults.py nodes 30

`signals` sends SIGINT, SIGTERM or SIGHUP, to every fourth run a second one. `kills` kills one
process of the run with `kill -9`. `writes` lets one change of a file in the run folder fail, at as
many places as there are runs, evenly over a whole run; it needs gcc. `command` kills the command of
a run of twelve hosts in three tiers, and compares finished steps with readable ones. It prints every run that did
not hold its promises (`docs/explanation/reliability.md`), and the number of those that did.

`folders` and `traces` damage one file of a run folder or a trace, and run the commands that read
it. `nodes` lets a node of a testbed send hostile messages. See `benchmarks/untrusted_input.py`.
"""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil

from laggard.run_folder.store import list_runs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.command_line import SMALL, Laggard
from tests.faults import count_finished_steps
from tests.run.failing_writes import build_library, run_with_failing_write

LONGEST_S = 15.0
PATIENCE_S = 20.0
SECOND_AFTER_S = 0.8
STEPS = 40
TWELVE_HOSTS = """
environment: {job_name: twelve, g5k: {cluster: paradoxe}}
layers:
  - {name: cloud, services: [{name: trainer, quantity: 2}]}
  - {name: fog, services: [{name: trainer, quantity: 4}]}
  - {name: edge, services: [{name: trainer, quantity: 6}]}
"""


@dataclass(frozen=True)
class Ended:
    """A run that has ended.

    Attributes:
        what: what was done to it.
        status: exit status of the command.
        output: standard output and error.
        ending_s: seconds from the fault to the end.
        left: what is left of the run outside its folder.
    """

    what: str
    status: int
    output: str
    ending_s: float
    left: tuple[str, ...] = ()


def list_broken_promises(ended: Ended, runs: Path) -> Iterator[str]:
    """Yield what does not hold after a run."""
    if "Traceback" in ended.output:
        yield "a traceback"
    yield from (f"left behind: {each}" for each in ended.left)
    for record, folder in list_runs(runs):
        if record.status == "running":
            yield "status running"
        progress = folder / "workers/progress.jsonl"
        finished = count_finished_steps(progress)
        report = [*Laggard(runs).command("report", str(folder))]
        done = subprocess.run(report, capture_output=True, text=True, check=False)
        if done.returncode or "Traceback" in done.stderr:
            yield f"report ends with status {done.returncode}: {done.stderr[-300:]}"
        elif finished and not (folder / "steps.parquet").exists():
            yield f"no step can be read: {done.stderr[-500:]}{sorted(folder.iterdir())}"
        elif finished:
            steps = pd.read_parquet(folder / "steps.parquet").query("rank == 0")
            if len(steps) < finished:
                yield f"{finished} steps were finished, {len(steps)} can be read"


def start(runs: Path, scenario: Path) -> subprocess.Popen[str]:
    """Start a run in a session of its own."""
    command = Laggard(runs).command("run", str(scenario), "--fidelity", "record")
    return subprocess.Popen(
        [*command, "--runs", str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def send_signals(chance: random.Random, number: int, runs: Path, scenario: Path) -> Ended:
    """Signal a run at a random moment."""
    kind = chance.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    moment_s = chance.uniform(0.3, LONGEST_S)
    run = start(runs, scenario)
    time.sleep(moment_s)
    processes = list_processes(run)
    run.send_signal(kind)
    sent_s = time.monotonic()
    what = f"{kind.name} after {moment_s:.2f} s"
    if number % 4 == 0:
        time.sleep(SECOND_AFTER_S)
        run.send_signal(kind)
        what += ", twice"
    output, _ = run.communicate(timeout=600)
    left = find_rest(processes, run.pid)
    return Ended(what, run.returncode, output, time.monotonic() - sent_s, left)


def kill_process(chance: random.Random, _number: int, runs: Path, scenario: Path) -> Ended:
    """Kill a random process of a run at a random moment."""
    moment_s = chance.uniform(0.3, LONGEST_S)
    run = start(runs, scenario)
    time.sleep(moment_s)
    processes = list_processes(run)
    victim = chance.choice(processes)
    name = victim.name()
    victim.kill()
    killed_s = time.monotonic()
    output, _ = run.communicate(timeout=600)
    left = find_rest(processes, run.pid)
    what = f"kill -9 of {name} after {moment_s:.2f} s"
    return Ended(what, run.returncode, output, time.monotonic() - killed_s, left)


def kill_command(chance: random.Random, _number: int, runs: Path, scenario: Path) -> Ended:
    """Kill the command itself in the middle of training."""
    run = start(runs, scenario)
    while not any(path.stat().st_size for path in runs.glob("*/2*/workers/progress.jsonl")):
        time.sleep(0.05)
    moment_s = chance.uniform(1.0, 8.0)
    time.sleep(moment_s)
    processes = list_processes(run)
    run.kill()
    killed_s = time.monotonic()
    output, _ = run.communicate(timeout=600)
    left = find_rest(processes, run.pid)
    ending_s = time.monotonic() - killed_s
    (progress,) = runs.glob("*/2*/workers/progress.jsonl")
    finished = count_finished_steps(progress)
    folder = progress.parent.parent
    subprocess.run(Laggard(runs).command("report", str(folder)), check=True, capture_output=True)
    steps = pd.read_parquet(folder / "steps.parquet")
    readable = steps.groupby("rank").size()
    print(
        f"{finished} steps finished; readable by rank: {readable.min()} to {readable.max()}",
        flush=True,
    )
    what = f"kill -9 of the command {moment_s:.1f} s after the first step"
    lost = (f"{finished - readable[0]} steps",) if readable[0] < finished else ()
    return Ended(what, run.returncode, output, ending_s, (*left, *lost))


def list_processes(run: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the run's process tree; it is empty if the run is over."""
    try:
        root = psutil.Process(run.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def find_rest(processes: list[psutil.Process], pid: int) -> tuple[str, ...]:
    """Return what is left of a run, after up to `PATIENCE_S` seconds of waiting."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        alive = [
            p.name() for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE
        ]
        groups = [str(p) for p in Path("/sys/fs/cgroup").glob(f"**/laggard-{pid}-*")]
        if not (alive or groups) or time.monotonic() > deadline:
            return (*alive, *groups)
        time.sleep(0.05)


def fail_writes(count: int, folder: Path, scenario: Path) -> Iterator[tuple[Ended, Path]]:
    """Yield one run per failed write."""
    library = build_library(folder)
    whole = run_with_failing_write(library, Laggard(folder / "whole"), scenario, 0, errno.EIO)
    print(f"{whole.changes} changes of files in a run", flush=True)
    kinds = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EMFILE)
    for number in range(count):
        at = 1 + number * whole.changes // count
        runs, kind = folder / str(number), kinds[number % len(kinds)]
        began_s = time.monotonic()
        run = run_with_failing_write(library, Laggard(runs), scenario, at, kind)
        what = f"change {at} fails with {errno.errorcode[kind]}"
        yield (
            Ended(what, run.status, run.output + run.errors, time.monotonic() - began_s),
            runs,
        )


def inflict(
    fault: Callable[[random.Random, int, Path, Path], Ended],
    count: int,
    folder: Path,
    scenario: Path,
) -> Iterator[tuple[Ended, Path]]:
    """Yield one run per fault."""
    for number in range(count):
        runs = folder / str(number)
        yield fault(random.Random(number), number, runs, scenario), runs


def try_untrusted_input(kind: str, count: int) -> None:
    """Print every case of untrusted input that broke a promise, and how many held."""
    from benchmarks.untrusted_input import try_folders, try_nodes, try_traces

    cases = []
    for case in {"folders": try_folders, "traces": try_traces, "nodes": try_nodes}[kind](count):
        cases.append(case)
        if case.broken:
            print(f"{case.what}: {'; '.join(case.broken)}", flush=True)
    held = sum(not case.broken for case in cases)
    ends = sum((Counter(case.ends) for case in cases), Counter())
    print(
        f"{kind}: {len(cases)} tried, {held} held; longest {max(c.took_s for c in cases):.1f} s,"
        f" most memory {max(c.bytes for c in cases) >> 20} MiB; commands by end: {dict(ends)}"
    )


def main() -> None:
    """Print every run that broke a promise, and how many held."""
    kind, count = sys.argv[1], int(sys.argv[2])
    if kind in {"folders", "traces", "nodes"}:
        try_untrusted_input(kind, count)
        return
    held, endings = 0, []
    with tempfile.TemporaryDirectory() as name:
        folder, scenario = Path(name), Path(name) / "small"
        scenario.mkdir()
        steps = 100_000 if kind == "command" else STEPS
        layers = {"layers_services.yaml": TWELVE_HOSTS} if kind == "command" else {}
        for file, text in {**SMALL, **layers}.items():
            (scenario / file).write_text(text.replace("steps: 60", f"steps: {steps}"))
        faults = {"signals": send_signals, "kills": kill_process, "command": kill_command}
        runs = (
            fail_writes(count, folder, scenario)
            if kind == "writes"
            else inflict(faults[kind], count, folder, scenario)
        )
        for ended, where in runs:
            broken = list(list_broken_promises(ended, where))
            held += not broken
            endings.append(ended.ending_s)
            if broken:
                print(f"{ended.what}: status {ended.status}; {'; '.join(broken)}", flush=True)
    print(
        f"{kind}: {count} tried, {held} held; median end after {sorted(endings)[count // 2]:.1f} s"
    )


if __name__ == "__main__":
    main()
