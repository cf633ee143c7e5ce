"""Error of `laggard predict` on the runs of a campaign.

    laggard campaign experiments/architectures/architectures.yaml
    python benchmarks/predictions.py runs/campaigns/architectures

A cell is predicted from one run of the same model in the scenario `homogeneous`, or else from the
fastest run of that model: the steps of its hosts are known, and nothing of the predicted run is.
`predictions.md` has the results of the last run.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from laggard.predict.forecast import Forecast, forecast_scenario
from laggard.predict.host_steps import RecordedSteps
from laggard.scenario.load import Scenario, load_scenario

BASE = "homogeneous"


@dataclass(frozen=True)
class Compared:
    """Predicted run.

    Attributes:
        scenario: its scenario, as it ran.
        ran_s: mean seconds between the starts of two steps.
        forecast: the prediction.
    """

    scenario: Scenario
    ran_s: float
    forecast: Forecast

    @property
    def error(self) -> float:
        """Return the relative error of the predicted seconds of a step."""
        return self.forecast.step_s.usual_s / self.ran_s - 1


def list_runs(campaign: Path) -> dict[str, list[Path]]:
    """Return the folders of all runs that are done, by model."""
    found: dict[str, list[Path]] = {}
    with (campaign / "results.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["status"] == "done":
                folder = Path(row["folder"])
                model = load_scenario(folder / "scenario").workload.model
                found.setdefault(model, []).append(folder)
    return found


def measure_step_s(folder: Path) -> float:
    """Return the mean seconds between the starts of two steps of rank 0; NaN for fewer than 12."""
    table = pq.read_table(folder / "steps.parquet", columns=["rank", "start_ns"])
    ranks, starts = (table[name].to_numpy() for name in ("rank", "start_ns"))
    own = np.sort(starts[ranks == 0])
    return float("nan") if len(own) < 12 else (own[-1] - own[0]) / (len(own) - 1) / 1e9


def compare(runs: Mapping[str, Sequence[Path]]) -> Iterator[Compared]:
    """Yield every run but those that predictions are made from."""
    for folders in runs.values():
        known = [each for each in folders if measure_step_s(each) > 0]
        if len(known) < 2:
            continue
        base = min(known, key=lambda each: (each.parent.name != BASE, measure_step_s(each)))
        source = RecordedSteps.read([base], load_scenario(base / "scenario").workload)
        for folder in known:
            if folder != base:
                scenario = load_scenario(folder / "scenario")
                yield Compared(
                    scenario, measure_step_s(folder), forecast_scenario(scenario, source)
                )


def main() -> None:
    """Print the tables."""
    compared = list(compare(list_runs(Path(sys.argv[1]))))
    print("| model | overrides | ran | predicted | error | limited by |\n|---|---|---|---|---|---|")
    for each in sorted(compared, key=lambda each: abs(each.error)):
        changed = ", ".join(
            text.partition(".")[2] for text in each.scenario.overrides if "seed" not in text
        )
        print(
            f"| {each.scenario.workload.model} | {changed[:60]} | {each.ran_s:.3g} s"
            f" | {each.forecast.step_s.usual_s:.3g} s | {each.error:+.1%}"
            f" | {each.forecast.limit} |"
        )
    errors = [abs(each.error) for each in compared]
    print(
        f"\n{len(errors)} runs: median error {statistics.median(errors):.1%},"
        f" 90th percentile {np.quantile(errors, 0.9):.1%}"
    )


if __name__ == "__main__":
    main()
