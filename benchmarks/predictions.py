"""Error of `laggard predict` on the runs of a campaign.

    laggard campaign experiments/architectures/architectures.yaml
    python benchmarks/predictions.py runs/campaigns/architectures
    python benchmarks/predictions.py runs/campaigns/architectures --here

A cell is predicted from one run of the same model in the scenario `homogeneous`, or else from the
fastest run of that model: the steps of its hosts are known, and nothing of the predicted run is.
With `--here` it is predicted from steps that are measured on this machine, without any run.
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

from laggard.predict.forecast import Forecast, forecast_scenario
from laggard.predict.host_steps import MachineSteps, RecordedSteps
from laggard.scenario.load import Scenario, load_scenario

BASE = "homogeneous"
LEAST_STEPS = 12


@dataclass(frozen=True)
class Compared:
    """Predicted run.

    Attributes:
        scenario: its scenario, as it ran.
        ran_s: virtual seconds of a step.
        forecast: the prediction.
    """

    scenario: Scenario
    ran_s: float
    forecast: Forecast

    @property
    def error(self) -> float:
        """Return the relative error of the predicted seconds of a step."""
        return self.forecast.step_s.usual_s / self.ran_s - 1


@dataclass(frozen=True)
class Ran:
    """Run of a cell.

    Attributes:
        folder: its folder.
        step_s: virtual seconds of a step of all workers: of a batch, for asynchronous ones.
    """

    folder: Path
    step_s: float


def list_runs(campaign: Path) -> dict[str, list[Ran]]:
    """Return all runs that are done and had twelve steps at least, by model."""
    found: dict[str, list[Ran]] = {}
    with (campaign / "results.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["status"] == "done" and int(row["steps"]) >= LEAST_STEPS:
                folder = Path(row["folder"])
                workload = load_scenario(folder / "scenario").workload
                step_s = workload.batch_size / float(row["samples_per_s"])
                found.setdefault(workload.model, []).append(Ran(folder, step_s))
    return found


def compare(runs: Mapping[str, Sequence[Ran]]) -> Iterator[Compared]:
    """Yield every run but those that predictions are made from."""
    for known in runs.values():
        if len(known) < 2:
            continue
        base = min(known, key=lambda each: (each.folder.parent.name != BASE, each.step_s))
        workload = load_scenario(base.folder / "scenario").workload
        source = RecordedSteps.read([base.folder], workload)
        for each in known:
            if each != base:
                scenario = load_scenario(each.folder / "scenario")
                yield Compared(scenario, each.step_s, forecast_scenario(scenario, source))


def compare_here(runs: Mapping[str, Sequence[Ran]]) -> Iterator[Compared]:
    """Yield every run, predicted from steps that are measured on this machine."""
    for known in runs.values():
        scenarios = [load_scenario(each.folder / "scenario") for each in known]
        source = MachineSteps.measure(scenarios)
        for each, scenario in zip(known, scenarios, strict=True):
            yield Compared(scenario, each.step_s, forecast_scenario(scenario, source))


def main() -> None:
    """Print the tables."""
    runs = list_runs(Path(sys.argv[1]))
    compared = list((compare_here if "--here" in sys.argv[2:] else compare)(runs))
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
