"""Error of predicted parts of a step: computing, and transfers over links.

    laggard campaign experiments/architectures/architectures.yaml
    python benchmarks/splits.py runs/campaigns/architectures
    python benchmarks/splits.py runs/campaigns/architectures --unseen

Every run of a model is predicted from one run of this model on another continuum, or on another
seed: the steps of its hosts are known, and nothing of the predicted run is. With `--unseen` it is
predicted from the runs of all *other* models. The measured parts are means over all workers; the
transfers exclude waits for slower workers. Runs of fewer than twelve steps are left out.
`splits.md` has the results of the last run.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from predictions import Ran, list_runs

from laggard.analysis.tables.load_run import load_run
from laggard.analysis.tables.timelines.step_parts import StepPart, measure_step_parts
from laggard.predict.forecast import require_predictable
from laggard.predict.host_steps import RecordedSteps
from laggard.predict.planned_training import plan_training
from laggard.scenario.load import Scenario, load_scenario

STEPS = 20
NO_COMPUTING_S = 1e-9


@dataclass(frozen=True)
class Parts:
    """Seconds of a step: of the slowest rank, of computing and of transfers as means of all."""

    step_s: float
    compute_s: float
    transfer_s: float


@dataclass(frozen=True)
class Compared:
    """Predicted run; `notes` say why the prediction is unlike what was measured."""

    model: str
    continuum: str
    measured: Parts
    predicted: Parts
    notes: tuple[str, ...]

    def errors(self) -> tuple[float, float, float]:
        """Return the errors of the step and of both parts, as parts of the measured step."""
        ran, told = self.measured, self.predicted
        return (
            told.step_s / ran.step_s - 1,
            (told.compute_s - ran.compute_s) / ran.step_s,
            (told.transfer_s - ran.transfer_s) / ran.step_s,
        )


def measure(folder: Path, scenario: Scenario) -> Parts:
    """Return the parts of the steps of a run."""
    parts, ranks = measure_step_parts(load_run(folder)), range(len(scenario.ranks))
    samples = scenario.workload.batch_size / len(scenario.ranks)

    def mean_s(rank: int, *names: StepPart) -> float:
        return samples * float(parts.average([rank], names).mean())

    computing: tuple[StepPart, ...] = ("fetch", "prep", "compute")
    return Parts(
        max(mean_s(rank, *computing, "transfer", "wait") for rank in ranks),
        statistics.fmean(mean_s(rank, *computing) for rank in ranks),
        statistics.fmean(mean_s(rank, "transfer") for rank in ranks),
    )


def predict(scenario: Scenario, source: RecordedSteps) -> tuple[Parts, tuple[str, ...]]:
    """Return the predicted parts, and notes about steps unlike the recorded ones."""
    strategy, steps = require_predictable(scenario), source.forecast(scenario)

    def simulate(seconds: Sequence[float]) -> float:
        plan = plan_training(scenario, seconds, source.messages, source.handling, STEPS)
        return strategy.simulate(plan).makespan_s / STEPS

    seconds = [each.usual_s for each in steps.seconds]
    transfer_s = simulate([NO_COMPUTING_S] * len(seconds))
    return Parts(simulate(seconds), statistics.fmean(seconds), transfer_s), steps.notes


def compare(runs: Mapping[str, Sequence[Ran]], *, unseen: bool) -> Iterator[Compared]:
    """Yield every run that is predicted from others."""
    folders_of = {model: [each.folder for each in known] for model, known in runs.items()}
    for model, folders in folders_of.items():
        others = [each for name, own in folders_of.items() if name != model for each in own]
        known = others if unseen else folders[:1]
        source = RecordedSteps.read(known, load_scenario(folders[0] / "scenario").workload)
        for folder in folders if unseen else folders[1:]:
            scenario = load_scenario(folder / "scenario")
            measured = measure(folder, scenario)
            yield Compared(model, folder.parent.name, measured, *predict(scenario, source))


def main() -> None:
    """Print the tables."""
    unseen = "--unseen" in sys.argv[2:]
    compared = list(compare(list_runs(Path(sys.argv[1])), unseen=unseen))
    print("| model | continuum | step | computing | transfers | outside what was measured |")
    print("|---|---|---|---|---|---|")
    for each in compared:
        cells = " | ".join(
            f"{told:.3f} of {ran:.3f} s ({100 * error:+.0f} %)"
            for told, ran, error in zip(
                vars(each.predicted).values(),
                vars(each.measured).values(),
                each.errors(),
                strict=True,
            )
        )
        outside = "yes" if each.notes else ""
        print(f"| {each.model} | {each.continuum} | {cells} | {outside} |")
    for name, chosen in (
        ("all", compared),
        ("inside what was measured", [each for each in compared if not each.notes]),
    ):
        if not chosen:
            print(f"\n{name}: no runs")
            continue
        errors = np.abs([each.errors() for each in chosen])
        print(f"\n{name}, {len(chosen)} runs, errors as parts of the measured step:")
        for what, values in zip(("step", "computing", "transfers"), errors.T, strict=True):
            print(
                f"- {what}: median {np.median(values):.1%}, 90th percentile"
                f" {np.quantile(values, 0.9):.1%}, within 15 %: {(values <= 0.15).mean():.0%}"
            )


if __name__ == "__main__":
    main()
