"""Accuracies on the tasks of a stream, as a training records them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, TypeAdapter

from laggard.core.run_schema import StreamTask
from laggard.workloads.output.worker_output import WorkerOutputDir, append_line, read_lines

if TYPE_CHECKING:
    from laggard.workloads.streams.stream_partition import StreamPartition

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TaskAccuracies:
    """Writer of the accuracies on all tasks.

    Attributes:
        output_dir: folder of the records.
        partition: samples of all steps.
    """

    output_dir: WorkerOutputDir
    partition: StreamPartition

    def write_tasks(self) -> None:
        """Write the classes and the last step of each task."""
        ends = np.cumsum(self.partition.task_steps).tolist()
        for end, classes in zip(ends, self.partition.stream.classes, strict=True):
            line = {"last_step": end - 1, "classes": " ".join(map(str, classes))}
            append_line(self.output_dir.stream, line)

    def write(self, correct: Indices, number: Indices, tier: str | None = None) -> None:
        """Write the accuracies on all tasks.

        A tier's own accuracies are written before those of the mean model.

        Args:
            correct: test samples of each class that are classified correctly, [C].
            number: test samples of each class, [C].
            tier: tier whose model it is; None for the model of all.
        """
        whose = {} if tier is None else {"tier": tier}
        for task, group in enumerate(self.partition.stream.classes):
            chosen = [each for each in group if each < len(number)]
            accuracy = float(correct[chosen].sum() / max(1, number[chosen].sum()))
            line = {"task": task, "accuracy": accuracy} | whose
            append_line(self.output_dir.task_accuracies, line)


class _TaskLine(BaseModel):
    last_step: int
    classes: str


class _AccuracyLine(BaseModel):
    task: int = Field(ge=0)
    tier: str | None = Field(default=None, max_length=256)
    accuracy: float = Field(ge=0, le=1)


_TASK_LINES = TypeAdapter(tuple[_TaskLine, ...])
_ACCURACY_LINES = TypeAdapter(tuple[_AccuracyLine, ...])


def read_tasks(output_dir: WorkerOutputDir, steps: Sequence[int]) -> tuple[StreamTask, ...]:
    """Read the tasks of a stream and the accuracies on them; none without a stream.

    Args:
        output_dir: folder of the records.
        steps: step of each evaluation of the training, in order.

    Raises:
        ValueError: the lines are damaged.
    """
    tasks = _TASK_LINES.validate_python(read_lines(output_dir.stream))
    lines = _ACCURACY_LINES.validate_python(read_lines(output_dir.task_accuracies))
    by_task: list[list[float]] = [[] for _ in tasks]
    by_tier: dict[str, list[dict[int, float]]] = {}
    for line in lines:
        if line.tier is None:
            by_task[line.task].append(line.accuracy)
        else:
            own = by_tier.setdefault(line.tier, [{} for _ in tasks])
            own[line.task][len(by_task[line.task])] = line.accuracy
    # The first one is that of the initial model. The last ones are missing if the evaluator was
    # ended between two lines.
    whole = min([len(steps), *(len(each) - 1 for each in by_task)])
    if whole < 0:
        return ()
    return tuple(
        StreamTask(
            classes=tuple(int(each) for each in task.classes.split()),
            last_step=task.last_step,
            initial_accuracy=accuracies[0],
            steps=tuple(steps[:whole]),
            accuracies=tuple(accuracies[1 : whole + 1]),
            tiers={
                # Without its own line, a tier had the model of all.
                tier: tuple(own[number].get(at, accuracies[at]) for at in range(1, whole + 1))
                for tier, own in by_tier.items()
            },
        )
        for number, (task, accuracies) in enumerate(zip(tasks, by_task, strict=True))
    )
