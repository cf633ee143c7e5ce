"""Effect of a killed worker and of a joining worker, under every strategy.

    python benchmarks/churn.py [STRATEGY ...]

There are eight equal hosts. Under strategies that support churn, `churn:` kills one worker after 5
s and starts another after 8 s of 14. Under the others, the same `churn:` is given to `laggard
check`, and a worker of a run without it is killed by a signal. `benchmarks/churn.md` has the last
results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil

from laggard.campaign.run_subprocess import run_in_subprocess
from laggard.workloads.strategies.registry import STRATEGY_NAMES, list_churn_strategies

SCENARIO = Path(__file__).parents[1] / "experiments" / "homogeneous"
LEAVES_S, JOINS_S, ENDS_S = 5.0, 8.0, 14.0
SETTLED_S = 1.0
# Rank 7 runs on this host.
VICTIM, HOST = 7, "edge.trainer.1.4"
SETTINGS = {
    "model": "cnn",
    "batch_size": 96,
    "optimizer": {"lr": 0.05},
    "evaluate_every": 10**9,
    "stop": {"time": f"{ENDS_S:g}s"},
}
CHURN = [{"at": f"{LEAVES_S:g}s", "leaves": HOST}, {"at": f"{JOINS_S:g}s", "joins": HOST}]
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Window:
    """Steps of the other workers in a period.

    Attributes:
        steps: steps of the other workers.
        since_s: begin of the period, in virtual seconds.
        until_s: end of the period, in virtual seconds.
    """

    steps: pd.DataFrame
    since_s: float
    until_s: float

    @property
    def begun(self) -> pd.DataFrame:
        """Steps that begin in the period."""
        return self.steps[self.steps.start_s.between(self.since_s, self.until_s)]

    @property
    def per_s(self) -> float:
        """Steps per second of all workers together."""
        return len(self.begun) / (self.until_s - self.since_s)

    @property
    def longest_s(self) -> float:
        """Duration of the longest step, in seconds."""
        return float((self.begun.end_s - self.begun.start_s).max())


def overrides(name: str, *, churns: bool) -> list[str]:
    """Return the values for `--set`."""
    settings = {**SETTINGS, "strategy": name, **({"churn": CHURN} if churns else {})}
    return [f"workload.{key}={json.dumps(value)}" for key, value in settings.items()]


def command(verb: str, settings: Sequence[str], *options: str) -> list[str]:
    """Return the command line of a Laggard command."""
    words = [word for each in settings for word in ("--set", each)]
    return [sys.executable, "-m", "laggard.cli.main", verb, str(SCENARIO), *options, *words]


def borne(name: str, runs: Path) -> str:
    """Return the row of a strategy that supports churn."""
    ended = run_in_subprocess(SCENARIO, overrides(name, churns=True), runs)
    if ended.status not in (0, 3) or ended.result is None:
        return f"| `{name}` | exit status {ended.status} | | | | |"
    folder = Path(str(ended.result["folder"]))
    churn = {each["kind"]: each for each in json.loads((folder / "run.json").read_text())["churn"]}
    left_s, joined_s = churn["left"]["effective_s"], churn["joined"]["effective_s"]
    steps = pd.read_parquet(folder / "steps.parquet")
    steps = steps.assign(start_s=steps.start_ns / 1e9, end_s=steps.end_ns / 1e9)
    others, back = (
        steps[steps["rank"] != VICTIM],
        steps[(steps["rank"] == VICTIM) & (steps.start_ns / 1e9 > left_s)],
    )
    windows = [
        Window(others, *ends)
        for ends in ((SETTLED_S, left_s), (left_s, joined_s), (joined_s, others.end_s.max()))
    ]
    # Steps of the others that were in progress when the joining worker began its first step.
    meanwhile = others[
        (others.start_s <= back.start_s.min()) & (others.end_s > back.start_s.min())
    ].step
    cells = [
        f"`{name}`" + (" *" if ended.status else ""),
        " · ".join(f"{window.per_s:.0f}" for window in windows),
        " · ".join(f"{window.longest_s:.2f}" for window in windows),
        f"{joined_s - churn['joined']['requested_s']:.1f} s",
        f"{back.step.min()}, {meanwhile.min()} to {meanwhile.max()}",
        f"{back.staleness.max()}, {others.staleness.max()}",
    ]
    return "| " + " | ".join(cells) + " |"


def not_borne(name: str, runs: Path) -> str:
    """Return the row of a strategy that ends when a worker dies, with the answer of `check`."""
    refused = subprocess.run(
        command("check", overrides(name, churns=True)), capture_output=True, text=True, check=False
    )
    silent = subprocess.DEVNULL
    options = ("--json", "--runs", str(runs))
    run = subprocess.Popen(
        command("run", overrides(name, churns=False), *options), stdout=silent, stderr=silent
    )
    killed_s = kill_one(run.pid, runs)
    status = run.wait(PATIENCE_S)
    ended_s = time.monotonic() - killed_s
    (record,) = (json.loads(path.read_text()) for path in runs.glob("*/2*/run.json"))
    told = [line.partition("]: ")[2] for line in refused.stderr.splitlines() if "churn:" in line]
    rule = told[0].partition(" — ")[0] if told else "not refused"
    return (
        f"| `{name}` | run ended after {ended_s:.0f} s, report included, with status {status}:"
        f" {record['error'].splitlines()[0]} | {rule} |"
    )


def kill_one(run: int, runs: Path) -> float:
    """Kill the victim's process once training has begun; return the time of the kill."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        trains = any(path.stat().st_size for path in runs.glob("*/*/workers/progress.jsonl"))
        for process in psutil.Process(run).children(recursive=True) if trains else ():
            with suppress(psutil.NoSuchProcess):  # some processes are short-lived
                if process.name() == f"rank-{VICTIM}":
                    process.kill()
                    return time.monotonic()
        time.sleep(0.02)
    raise TimeoutError(f"training did not begin within {PATIENCE_S:g} s")


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("strategies", nargs="*", default=STRATEGY_NAMES)
    asked = parser.parse_args()
    bearing = [name for name in asked.strategies if name in list_churn_strategies()]
    print(
        "| strategy | steps per second of the others: before · without · after the join | their"
        " longest step, s | joined after | first step of the joining worker, theirs then | largest"
        " staleness: its own, theirs |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="laggard-churn-") as runs:
        for name in bearing:
            print(borne(name, Path(runs) / name), flush=True)
        print("\n| strategy | effect of a killed worker | answer to `churn:` |\n|---|---|---|")
        for name in asked.strategies:
            if name not in bearing:
                print(not_borne(name, Path(runs) / name), flush=True)


if __name__ == "__main__":
    main()
