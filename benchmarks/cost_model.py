"""Error of the cost model on models that its fit has not seen.

    python benchmarks/cost_model.py                (the measurements of cost_model.csv)
    python benchmarks/cost_model.py RUN ...        (run folders of Laggard)

Each model is left out in turn, and the seconds of its step are predicted from those of the others.
`cost_model.md` has the source of the measurements, and the results of the last run.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laggard.analysis.cost_model.fit_step_cost import (
    StepMeasurement,
    choose_terms,
    fit_step_cost,
)
from laggard.core.cost_model.demand import CostTerm, StepDemand
from laggard.core.cost_model.step_cost import StepPrediction
from laggard.predict.step_times import measure_runs

TABLE = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True)
class HeldOut:
    """Step of a model that was left out, and its prediction.

    `line_s` is the prediction of the least-squares line through seconds against FLOPs.
    """

    step: StepMeasurement
    predicted: StepPrediction
    line_s: float

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return abs(self.predicted.seconds / self.step.seconds - 1)

    @property
    def line_error(self) -> float:
        """Return the relative error of the line."""
        return abs(self.line_s / self.step.seconds - 1)

    @property
    def is_covered(self) -> bool:
        """Return whether the measured seconds are inside the interval."""
        return self.predicted.low_s <= self.step.seconds <= self.predicted.high_s


def read_table(path: Path) -> dict[str, list[StepMeasurement]]:
    """Return the measurements of every device."""
    found: dict[str, list[StepMeasurement]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            demand = StepDemand(float(row["flops"]), float(row["tensors"]))
            step = StepMeasurement(row["model"], demand, float(row["seconds"]))
            found.setdefault(row["device"], []).append(step)
    return found


def read_runs(folders: Sequence[Path]) -> dict[str, list[StepMeasurement]]:
    """Return the measurements of every kind of host in run folders."""
    found: dict[str, list[StepMeasurement]] = {}
    for each in measure_runs(folders):
        found.setdefault(str(each.kind), []).append(each.step)
    return found


def hold_out(
    steps: Sequence[StepMeasurement], group: Callable[[StepMeasurement], str]
) -> list[HeldOut]:
    """Predict every step from the steps of all other groups."""
    held_out = []
    for name in dict.fromkeys(map(group, steps)):
        seen = [step for step in steps if group(step) != name]
        fitted = fit_step_cost(seen, choose_terms(seen))
        flops = [step.demand.flops for step in seen]
        line = np.polynomial.Polynomial.fit(flops, [step.seconds for step in seen], 1)
        held_out += [
            HeldOut(step, fitted.predict(step.demand), float(line(step.demand.flops)))
            for step in steps
            if group(step) == name
        ]
    return held_out


def format_row(device: str, held_out: Sequence[HeldOut]) -> str:
    """Format a row of the table."""
    if not held_out:
        return f"| {device} | 0 | | | | |"
    error = np.array([each.error for each in held_out])
    line = np.array([each.line_error for each in held_out])
    covered = sum(each.is_covered for each in held_out)
    return (
        f"| {device} | {len(held_out)} | {error.mean():.1%} | {error.max():.0%} |"
        f" {line.mean():.0%} | {covered} of {len(held_out)} |"
    )


def print_tables(devices: Mapping[str, Sequence[StepMeasurement]]) -> None:
    """Print the errors of every device, and the coefficients of the fit to all of its steps."""
    print("| steps left out | steps | mean error | worst | FLOPs alone | in the interval |")
    print("|---|---|---|---|---|---|")
    for device, steps in devices.items():
        held_out = hold_out(steps, lambda step: step.model)
        print(format_row(device, held_out))
        inside = [each for each in held_out if not each.predicted.is_extrapolated]
        outside = [each for each in held_out if each.predicted.is_extrapolated]
        print(format_row(f"{device}, inside what was measured", inside))
        print(format_row(f"{device}, marked as extrapolated", outside))
    print("\n| device | fixed, ms | ms per GFLOP | ms per tensor |\n|---|---|---|---|")
    for device, steps in devices.items():
        fitted = fit_step_cost(steps, choose_terms(steps))
        known = dict(zip(fitted.terms, fitted.coefficients, strict=True))
        fixed, flops, tensors = (known.get(term, 0.0) for term in list(CostTerm)[:3])
        print(f"| {device} | {1e3 * fixed:.3g} | {1e12 * flops:.3g} | {1e3 * tensors:.3g} |")


def print_families(devices: Mapping[str, Sequence[StepMeasurement]]) -> None:
    """Print the errors for a family of models when only the other family was measured."""
    print("\n| family left out | steps | mean error | worst | FLOPs alone | in the interval |")
    print("|---|---|---|---|---|---|")
    for device, steps in devices.items():
        held_out = hold_out(steps, find_family)
        for family in ("ResNet", "Shake-Shake"):
            own = [each for each in held_out if find_family(each.step) == family]
            marked = sum(each.predicted.is_extrapolated for each in own)
            print(format_row(f"{device}, {family} ({marked} marked)", own))


def find_family(step: StepMeasurement) -> str:
    """Return the family of a model of `cost_model.csv`."""
    return "Shake-Shake" if step.model.startswith("shake") else "ResNet"


def main() -> None:
    """Print the tables of the committed measurements, or of the run folders that are given."""
    if folders := [Path(argument) for argument in sys.argv[1:]]:
        print_tables(read_runs(folders))
    else:
        devices = read_table(TABLE)
        print_tables(devices)
        print_families(devices)


if __name__ == "__main__":
    main()
