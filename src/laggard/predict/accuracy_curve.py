"""Samples that a training needs to reach an accuracy, from recorded runs of the same training.

How fast a model learns is not predicted. It is known if runs of the same model, data, optimizer,
batch and strategy have reached the accuracy. Such a run says after how many samples; a prediction
adds how long these take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laggard.analysis.tables.load_run import RunData, load_run
from laggard.analysis.tables.timelines.evaluations import select_evaluations
from laggard.core.cost_model.step_seconds import StepSeconds
from laggard.predict.forecast import Forecast
from laggard.scenario.load import load_scenario
from laggard.workloads.coordination.stopping import accuracy_reached
from laggard.workloads.specification.training import Stop
from laggard.workloads.workload import Workload

_ALIKE_FOR_ALL_NUMBERS = ("allreduce", "ring_allreduce")
"""Strategies that train in the same way with any number of workers, if the batch is the same."""


@dataclass(frozen=True)
class RecordedLearning:
    """Samples after which one run reached the accuracy.

    Attributes:
        workers: number of its workers.
        batch_size: samples of one of its steps.
        samples: samples of all workers until the last of the evaluations that count.
    """

    workers: int
    batch_size: int
    samples: int


@dataclass(frozen=True)
class AccuracyCurve:
    """Recorded runs that reached the accuracy of `workload.stop`.

    Attributes:
        strategy: name of the strategy.
        learned: runs that reached it.
        notes: sentences about runs that say nothing about it.
    """

    strategy: str
    learned: tuple[RecordedLearning, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, folders: Sequence[Path], workload: Workload) -> AccuracyCurve | None:
        """Read what runs say about the accuracy at which a training ends.

        Args:
            folders: folders of recorded runs.
            workload: the training to predict.

        Returns:
            None if the training does not end at an accuracy, or no run is given.
        """
        accuracy = workload.stop.accuracy
        if accuracy is None or not folders:
            return None
        learned: list[RecordedLearning] = []
        notes: list[str] = []
        for folder in folders:
            recorded = load_scenario(folder / "scenario").workload
            other = next(_list_differences(recorded, workload), None)
            if other is not None:
                notes.append(f"{folder.name} has another {other}, so its accuracy is not used")
                continue
            run = load_run(folder)
            samples = find_samples_to_accuracy(run, accuracy)
            if samples is None:
                notes.append(f"{folder.name} did not reach an accuracy of {100 * accuracy:g} %")
                continue
            learned.append(RecordedLearning(run.world_size, recorded.batch_size, samples))
        return cls(workload.strategy.name, tuple(learned), tuple(notes))

    def forecast_s(self, forecast: Forecast) -> StepSeconds | None:
        """Return the seconds until the accuracy is reached; None if no run tells."""
        alike = self.strategy in _ALIKE_FOR_ALL_NUMBERS
        steps = [
            each.samples / each.batch_size
            for each in self.learned
            if each.batch_size == forecast.batch_size
            and (alike or each.workers == forecast.workers)
        ]
        if not steps:
            return None
        step_s = forecast.step_s
        return StepSeconds(
            step_s.low_s * min(steps),
            step_s.usual_s * float(np.median(steps)),
            step_s.high_s * max(steps),
        )


def find_samples_to_accuracy(run: RunData, accuracy: float) -> int | None:
    """Return the samples after which a run reached an accuracy by the stopping rule.

    Args:
        run: the run.
        accuracy: accuracy that several evaluations in a row must reach.

    Returns:
        Samples of all ranks whose steps had ended by the last of these evaluations; None if the
        run never reached the accuracy.
    """
    steps, stop = run.steps, Stop(accuracy=accuracy)
    evaluated = select_evaluations(steps)
    for count in range(1, len(evaluated) + 1):
        if accuracy_reached(evaluated.accuracy[:count].tolist(), stop):
            step, end_ns = evaluated.step[count - 1], evaluated.end_ns[count - 1]
            before = steps.step <= step if run.is_lockstep else steps.end_ns <= end_ns
            return int((steps.samples - steps.dropped)[before].sum())
    return None


def _list_differences(recorded: Workload, workload: Workload) -> Iterator[str]:
    """Yield the settings that change how a model learns."""
    if recorded.model != workload.model:
        yield "model"
    # A folder may be another copy of the same data.
    datasets = [each.dataset.model_dump(exclude={"folder"}) for each in (recorded, workload)]
    if datasets[0] != datasets[1]:
        yield "dataset"
    if recorded.optimizer != workload.optimizer:
        yield "optimizer"
    if recorded.strategy != workload.strategy:
        yield "strategy"
