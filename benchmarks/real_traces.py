"""Published traces of several ranks: what `laggard analyze` says, and what is true.

    python benchmarks/real_traces.py CLONES

`CLONES` has clones of HolisticTraceAnalysis, param, TraceLens and StragglerAnalysis
(`published_traces.py`). The truth is computed here from the files, without Laggard's reader.

A profiler's collectives are NCCL's kernels; the k-th of one process group on one rank is the k-th
on the others. The last rank is the one whose kernel starts last. Until then, every other rank that
has started its own kernel waits: at most since its start, and at least since the end of the last
other kernel that it then executes. Ranks disagree at a collective if one ends before another
starts. In ByteDance's traces, a worker's slowdown is the median, over all steps and microbatches,
of its computing time divided by the median of its stage.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from published_traces import write_bytedance, write_jobs

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
Interval = tuple[float, float]


@dataclass(frozen=True)
class Rank:
    """Kernels of one rank, in microseconds: collectives by process group, and all others."""

    collectives: dict[str, list[Interval]]
    others: list[Interval]


@dataclass(frozen=True)
class Wait:
    """Longest and shortest microseconds that all ranks together waited for the last one."""

    last: int
    most_us: float
    least_us: float


def read_ranks(folder: Path) -> dict[int, Rank]:
    """Read the trace of every rank."""
    ranks = {}
    for file in sorted(folder.iterdir()):
        text = file.read_bytes()
        text = gzip.decompress(text) if file.suffix == ".gz" else text
        document = json.loads(text, strict=False)
        number = document.get("distributedInfo", {}).get("rank")
        found, others = {}, []
        for event in sorted(document["traceEvents"], key=lambda each: float(each.get("ts", 0))):
            if event.get("ph") != "X" or event.get("cat", "").lower() not in DEVICE:
                continue
            kernel = (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
            if "nccl" in event["name"].lower():
                group = str(event["args"].get("Process Group Ranks", ""))
                found.setdefault(group, []).append(kernel)
            else:
                others.append(kernel)
        digits = "".join(c for c in file.name.split("_")[0] if c.isdigit())
        ranks[int(digits) if number is None else number] = Rank(found, others)
    return ranks


def match(ranks: dict[int, Rank]) -> Iterator[dict[int, Interval]]:
    """Yield the kernels of each collective by rank."""
    for group in {group for rank in ranks.values() for group in rank.collectives}:
        own = {n: rank.collectives[group] for n, rank in ranks.items() if group in rank.collectives}
        for kernels in zip(*own.values(), strict=False):
            if len(own) > 1:
                yield dict(zip(own, kernels, strict=True))


def find_wait(collective: dict[int, Interval], ranks: dict[int, Rank]) -> Wait:
    """Return the wait at one collective."""
    last = max(collective, key=lambda rank: collective[rank][0])
    arrived = collective[last][0]
    most = least = 0.0
    for rank, (start, _) in collective.items():
        busy_until = max(
            (min(end, arrived) for begin, end in ranks[rank].others if begin < arrived),
            default=start,
        )
        most += arrived - start
        least += arrived - max(start, busy_until)
    return Wait(last, most, least)


def describe_truth(ranks: dict[int, Rank]) -> str:
    """Return the waits of all ranks and the rank that caused most of them, in one line."""
    collectives = list(match(ranks))
    split = sum(
        max(start for start, _ in each.values()) > min(end for _, end in each.values())
        for each in collectives
    )
    busy = {number: sum(end - start for start, end in r.others) for number, r in ranks.items()}
    usual = pd.Series(busy).median()
    computing = ", ".join(f"{n}: {us / usual:.2f}" for n, us in busy.items())
    if split:
        return f"ranks disagree at {split} of {len(collectives)}; computing / median {computing}"
    waits = [find_wait(each, ranks) for each in collectives]
    most, least = (sum(getattr(each, key) for each in waits) for key in ("most_us", "least_us"))
    last = Counter(each.last for each in waits)
    caused = {rank: [w for w in waits if w.last == rank] for rank in last}
    first = max(caused, key=lambda rank: sum(each.most_us for each in caused[rank]))
    shares = [
        sum(getattr(each, key) for each in caused[first]) / max(whole, 1e-9)
        for key, whole in (("least_us", least), ("most_us", most))
    ]
    return (
        f"mean wait {least / len(ranks) / 1e3:.2f} to {most / len(ranks) / 1e3:.2f} ms; rank"
        f" {first} caused {min(shares):.0%} to {max(shares):.0%}, last at {last[first]} of"
        f" {len(waits)}; computing / median {computing}"
    )


def describe_bytedance_truth(file: Path) -> str:
    """Return the slowest worker of a ByteDance trace, and the published cost of its rank."""
    operations = pd.read_parquet(file)
    computing = operations[operations["optype"].isin(["forward-compute", "backward-compute"])]
    usual = computing.groupby(["stage", "optype"], observed=True)["duration"].transform("median")
    ratio = computing["duration"] / usual
    slow = ratio.groupby([computing["dp_rank"], computing["stage"]]).median()
    worker, stage = slow.idxmax()
    result = json.loads(file.with_name(f"result-{file.stem[-2:]}.json").read_text())
    whole = result["blocking_slowdown"]
    rank, share = max(result["blocking_decompose_by_dp_rank"].items(), key=lambda each: each[1])
    return (
        f"worker {worker} of stage {stage} computes {slow.max():.2f}x; published cost of all causes, also"
        f" of unequal stages, {1 - 1 / whole:.1%}; worst worker {rank} {1 - 1 / share:.1%}"
    )


def describe_finding(path: Path) -> str:
    """Return the answer of `laggard analyze`, and the waits that it reports, in one line."""
    words = [sys.executable, "-m", "laggard", "analyze", "--json", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=path.parent)
    if done.returncode:
        return done.stderr.strip()
    found: dict[str, Any] = json.loads(done.stdout)
    ranks = found["ranks"]
    wait_ms = sum(rank["wait_s"] for rank in ranks) / len(ranks) * 1e3
    return f"{' '.join(found['answer'])} (mean wait {wait_ms:.2f} ms)"


def main() -> None:
    """Print what is said and what is true of every trace."""
    clones = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        for folder in write_jobs(clones, Path(scratch)):
            print(f"{folder.name}\n  said: {describe_finding(folder)}", flush=True)
            print(f"  true: {describe_truth(read_ranks(folder))}", flush=True)
        for file in write_bytedance(clones, Path(scratch)):
            print(f"{file.stem}\n  said: {describe_finding(file)}", flush=True)
            print(f"  true: {describe_bytedance_truth(file)}", flush=True)


if __name__ == "__main__":
    main()
