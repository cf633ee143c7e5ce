"""Whether every strategy learns as well as DDP from as many samples: `python benchmarks/accuracy.py [--runs FOLDER]`, as root.

Runs what is left of accuracy.yaml, prints a table: 160 runs, an hour. Equally well, within a point, is who has the whole 95 % interval of its
difference within one point either way, seed by seed; where that reaches further, either the strategy learns worse or eight seeds do not tell.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from laggard.analysis.compare_runs import Estimate, estimate, estimate_difference
from laggard.errors import LaggardError
from laggard.experiments.campaign import run_campaign, told

CAMPAIGN = Path(__file__).with_suffix(".yaml")
BASELINE = "allreduce"
MARGIN = 0.01

Seeds = dict[tuple[int, int], float]


def accuracies(table: Path) -> dict[str, Seeds]:
    """Of each strategy's runs that were done, by seed."""
    found: dict[str, Seeds] = {}
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] == "done":
                found.setdefault(name_of(row["workload.strategy"]), {})[int(row["workload.seed"]), 0] = float(
                    row["accuracy"]
                )
    return found


def name_of(strategy: str) -> str:
    """As the table calls it."""
    if not strategy.startswith("{"):
        return strategy
    parts = json.loads(strategy)
    compress = parts["compress"]
    return " ".join(map(str, compress.values())) if isinstance(compress, dict) else str(compress)


def lines(found: Mapping[str, Seeds]) -> Iterator[str]:
    """The table, those that differ most last."""
    yield "| strategy | seeds | accuracy | points against DDP, 95 % interval | within one point |"
    yield "|---|---|---|---|---|"
    yield f"| {BASELINE} (DDP) | {len(found[BASELINE])} | {accuracy(found[BASELINE])} | | |"
    differences = {name: estimate_difference(*alike(found[BASELINE], of)) for name, of in found.items()}
    for name in sorted(found, key=lambda name: -differences[name].mean):
        if name == BASELINE:
            continue
        of = differences[name]
        yield f"| {name} | {len(found[name])} | {accuracy(found[name])} | {points(of)} | {verdict(of)} |"


def alike(first: Seeds, other: Seeds) -> tuple[Seeds, Seeds]:
    """Of the seeds that both have."""
    return {k: v for k, v in first.items() if k in other}, {k: v for k, v in other.items() if k in first}


def accuracy(of: Seeds) -> str:
    """Mean, in per cent."""
    return f"{100 * estimate(list(of.values())).mean:.2f} %"


def points(of: Estimate) -> str:
    """With its interval."""
    ends = "" if of.low is None or of.high is None else f" ({100 * of.low:+.2f} to {100 * of.high:+.2f})"
    return f"{100 * of.mean:+.2f}{ends}"


def verdict(of: Estimate) -> str:
    """Whether the whole interval is."""
    return "yes" if of.low is not None and of.high is not None and -MARGIN < of.low <= of.high < MARGIN else "not shown"


def main(arguments: Sequence[str]) -> None:
    """Run what is left, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="where run folders and the campaign's state are kept"
    )
    asked = parser.parse_args(arguments)
    table, failed = run_campaign(CAMPAIGN, asked.runs, lambda *run: print(told(*run), flush=True))
    print("\n".join(lines(accuracies(table))))
    if failed:
        print(f"{failed} runs were not done in this call, and are left out")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LaggardError as error:
        sys.exit(str(error))
