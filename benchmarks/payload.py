"""Bytes that each strategy reports as sent, compared with bytes that kernels acknowledged.

    python benchmarks/payload.py [STRATEGY ...]

It uses the emulated links of the quickstart. Strategies over the message transport report their
bytes. Collectives of gloo do not; their acknowledged bytes are compared with what an optimal
all-reduce of their payload sends.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from laggard.analysis.tables.load_run import load_run
from laggard.campaign.run_subprocess import run_in_subprocess
from laggard.core.span_schema import Phase
from laggard.workloads.strategies.registry import STRATEGY_NAMES

SCENARIO = Path(__file__).parents[1] / "experiments" / "quickstart"
STEPS = 20


def main(names: list[str]) -> None:
    """Print a table."""
    print(
        "| strategy | reported, MB | acknowledged, MB | acknowledged / reported, worst process |"
        " all processes |"
    )
    print("|---|---|---|---|---|")
    for name in names or STRATEGY_NAMES:
        with tempfile.TemporaryDirectory(prefix="laggard-payload-") as runs:
            print(row(name, Path(runs)), flush=True)


def row(name: str, runs: Path) -> str:
    """Return the row of one strategy."""
    settings = {"strategy": name, "stop": {"steps": STEPS}, "evaluate_every": 10**9}
    ended = run_in_subprocess(
        SCENARIO, [f"workload.{key}={json.dumps(value)}" for key, value in settings.items()], runs
    )
    # Status 3 is an unfaithful emulation, which changes the timing of messages, not their size.
    if ended.status not in (0, 3) or ended.result is None:
        return f"| `{name}` | exit status {ended.status} | | | |"
    folder = Path(str(ended.result["folder"]))
    if not (folder / "spans.parquet").exists():
        return f"| `{name}` | did not train | | | |"
    traffic = json.loads((folder / "counters.json").read_text())["traffic"]
    acked = sum(each["acked_bytes"] for each in traffic)
    if any(each["payload_bytes"] is None for each in traffic):
        said = optimal_bytes(folder)
        return (
            f"| `{name}` (gloo) | {said / 1e6:.2f}, if optimal | {acked / 1e6:.2f} | |"
            f" {acked / said:.4f} |"
        )
    said = sum(each["payload_bytes"] for each in traffic)
    ratios = [
        each["acked_bytes"] / each["payload_bytes"] for each in traffic if each["payload_bytes"]
    ]
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    return f"| `{name}` | {said / 1e6:.2f} | {acked / 1e6:.2f} | {worst:.4f} | {acked / said:.4f} |"


def optimal_bytes(folder: Path) -> float:
    """Return the bytes of optimal collectives: 2 (n - 1) S for n ranks and S bytes."""
    spans = load_run(folder).spans
    comm = (spans.phase == Phase.COMM.code) & (spans.group >= 0)
    members: dict[tuple[int, int], list[int]] = {}
    for step, group, size in zip(
        spans.step[comm], spans.group[comm], spans.bytes[comm], strict=True
    ):
        members.setdefault((int(step), int(group)), []).append(int(size))
    return float(sum(2 * (len(sizes) - 1) * max(sizes) for sizes in members.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
