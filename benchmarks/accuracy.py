"""Accuracy of every strategy compared with DDP, after the same number of samples.

    python benchmarks/accuracy.py [--runs FOLDER]        (as root)

It runs the runs of accuracy.yaml that are not done yet and prints a table: 168 runs, an hour and a
quarter. A strategy is within one point of DDP if the whole 95 % interval of its difference, seed
by seed, lies within one point either way. Otherwise either the strategy is less accurate, or eight
seeds do not suffice to tell. Runs with an unfaithful emulation count only for seeds without a
faithful run, and the table shows their number. Nothing is timed here, so late messages do no harm.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.analysis.findings.compare_runs import Estimate, estimate_difference, estimate_mean
from laggard.campaign.campaign_display import CampaignTextDisplay
from laggard.campaign.run_campaign import CampaignOptions, run_campaign
from laggard.core.errors import LaggardError

CAMPAIGN = Path(__file__).with_suffix(".yaml")
BASELINE = "allreduce"
DONE, SLIPPED = STATUSES = ("done", "unfaithful")
MARGIN = 0.01

Seeds = dict[tuple[int, int], float]


@dataclass(frozen=True)
class Accuracies:
    """Accuracies of one strategy's runs.

    Attributes:
        by_seed: accuracy by seed and repetition.
        slipped: number of seeds without a faithful run.
    """

    by_seed: Mapping[tuple[int, int], float]
    slipped: int

    def alike(self, other: Accuracies) -> Seeds:
        """Return the accuracies of the seeds that the other strategy has, too."""
        return {seed: accuracy for seed, accuracy in self.by_seed.items() if seed in other.by_seed}


def learnt(table: Path) -> dict[str, Accuracies]:
    """Read the accuracies of each strategy's runs."""
    found: dict[str, dict[str, Seeds]] = {}
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] in STATUSES and row["accuracy"]:
                of = found.setdefault(
                    name_of(row["workload.strategy"]), {status: {} for status in STATUSES}
                )
                of[row["status"]][int(row["workload.seed"]), 0] = float(row["accuracy"])
    # A faithful run replaces an unfaithful one of the same seed.
    return {
        name: Accuracies({**of[SLIPPED], **of[DONE]}, len(of[SLIPPED].keys() - of[DONE].keys()))
        for name, of in found.items()
    }


def name_of(strategy: str) -> str:
    """Return the name of a strategy in the table."""
    if not strategy.startswith("{"):
        return strategy
    parts = json.loads(strategy)
    compress = parts.get("compress")
    if compress is None:
        return ", ".join(
            str(value) if key == "name" else f"{key}: {value}" for key, value in parts.items()
        )
    return str(compress["name"] if isinstance(compress, dict) else compress)


def lines(found: Mapping[str, Accuracies]) -> Iterator[str]:
    """Yield the rows of the table; the least accurate strategies are last."""
    yield (
        "| strategy | seeds, unfaithful | accuracy | points against DDP, 95 % interval | within one"
        " point |"
    )
    yield "|---|---|---|---|---|"
    base = found[BASELINE]
    yield f"| {BASELINE} (DDP) | {told_seeds(base)} | {mean(base)} | | |"
    differences = {
        name: estimate_difference(base.alike(of), of.alike(base)) for name, of in found.items()
    }
    for name in sorted(found.keys() - {BASELINE}, key=lambda name: -differences[name].mean):
        of = differences[name]
        yield (
            f"| {name} | {told_seeds(found[name])} | {mean(found[name])} | {points(of)} |"
            f" {verdict(of)} |"
        )


def told_seeds(of: Accuracies) -> str:
    """Format the number of seeds and how many of them have unfaithful runs only."""
    return f"{len(of.by_seed)}, {of.slipped}"


def mean(of: Accuracies) -> str:
    """Format the mean accuracy in percent."""
    return f"{100 * estimate_mean(list(of.by_seed.values())).mean:.2f} %"


def points(of: Estimate) -> str:
    """Format a difference in points with its interval."""
    ends = (
        ""
        if of.low is None or of.high is None
        else f" ({100 * of.low:+.2f} to {100 * of.high:+.2f})"
    )
    return f"{100 * of.mean:+.2f}{ends}"


def verdict(of: Estimate) -> str:
    """Return `yes` if the whole interval is within one point, else `not shown`."""
    return (
        "yes"
        if of.low is not None and of.high is not None and -MARGIN < of.low <= of.high < MARGIN
        else "not shown"
    )


def main(arguments: Sequence[str]) -> None:
    """Run what is left of the campaign and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        help="folder for run folders and the campaign's state",
    )
    asked = parser.parse_args(arguments)
    result = run_campaign(CAMPAIGN, CampaignOptions(asked.runs), CampaignTextDisplay())
    print("\n".join(lines(learnt(result.table))))
    if result.progress.failed:
        print(
            f"{result.progress.failed} runs failed or were unfaithful; start the benchmark again to repeat them"
        )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LaggardError as error:
        sys.exit(str(error))
