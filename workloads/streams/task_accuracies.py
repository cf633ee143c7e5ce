"""Accuracies on the tasks of a stream, as records of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.rules.incremental_learning import IncrementalMeasures, measure_incremental
from laggard.workloads.output.worker_output import WorkerOutputDir, append_line, read_lines

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TaskAccuracies:
    """Writer of the accuracies on all tasks.

    Attributes:
        path: file of JSON lines.
        classes: classes that are tested for each task.
    """

    path: Path
    classes: tuple[tuple[int, ...], ...]

    def write(self, correct: Indices, number: Indices) -> None:
        """Write the accuracies on all tasks.

        Args:
            correct: test samples of each class that are classified correctly, [C].
            number: test samples of each class, [C].
        """
        for task, group in enumerate(self.classes):
            chosen = [*group]
            accuracy = float(correct[chosen].sum() / max(1, number[chosen].sum()))
            append_line(self.path, {"task": task, "accuracy": accuracy})


@dataclass(frozen=True)
class IncrementalRecord:
    """Accuracies of a training on the tasks of its stream.

    Attributes:
        matrix: accuracy on each task after each task that has ended, [E, T].
        initial: accuracy of the initial model on each task, [T].
        measures: measures of all tasks; None if not all have ended.
    """

    matrix: FloatArray
    initial: FloatArray
    measures: IncrementalMeasures | None


def read_task_accuracies(output_dir: WorkerOutputDir) -> IncrementalRecord | None:
    """Read the accuracies after each task; None if the training had no stream."""
    last_steps = [_to_float(line["last_step"]) for line in read_lines(output_dir.stream)]
    if not last_steps:
        return None
    written = [_to_float(line["accuracy"]) for line in read_lines(output_dir.task_accuracies)]
    tasks = len(last_steps)
    whole = len(written) // tasks
    initial, *after = np.array(written[: whole * tasks]).reshape(whole, tasks)
    steps = [_to_float(line["step"]) for line in read_lines(output_dir.evaluations)]
    rows = [
        next((row for step, row in zip(steps, after, strict=False) if step >= last), None)
        for last in last_steps
    ]
    ended = [row for row in rows if row is not None]
    matrix = np.array(ended, dtype=np.float64).reshape(len(ended), tasks)
    complete = len(ended) == tasks
    return IncrementalRecord(
        matrix, initial, measure_incremental(matrix, initial) if complete else None
    )


def _to_float(value: float | str | None) -> float:
    assert isinstance(value, int | float)
    return float(value)
