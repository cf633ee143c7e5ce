"""Tasks of a stream: which training samples arrive together, and which classes are new in each.

Class-incremental and domain-incremental streams are those of G. van de Ven, T. Tuytelaars and
A. Tolias (*Three types of incremental learning*, Nature Machine Intelligence 2022). In a task-free
stream the classes change gradually (R. Aljundi, K. Kelchtermans, T. Tuytelaars, *Task-free
continual learning*, CVPR 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from laggard.core.errors import InputError

Indices = npt.NDArray[np.int64]

_DRIFT = 0.5
"""Standard deviation of the place of a sample in a task-free stream, in tasks."""


@dataclass(frozen=True)
class TaskStream:
    """Order in which training samples arrive.

    Attributes:
        tasks: samples of each task.
        classes: classes that are tested for each task; in a task-free stream, those whose samples
            are most frequent meanwhile.
    """

    tasks: tuple[Indices, ...]
    classes: tuple[tuple[int, ...], ...]


def split_classes(classes: int, tasks: int, seed: int | None) -> tuple[tuple[int, ...], ...]:
    """Divide classes into tasks as evenly as possible, in ascending or in drawn order.

    Raises:
        InputError: there are more tasks than classes.

    Examples:
        >>> split_classes(5, 2, None)
        ((0, 1, 2), (3, 4))
    """
    if not 1 <= tasks <= classes:
        raise InputError(
            f"stream: {tasks} tasks of {classes} classes: each task needs a class of its own — give"
            f" from 1 to {classes} tasks"
        )
    order = np.arange(classes)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(classes)
    return tuple(tuple(part.tolist()) for part in np.array_split(order, tasks))


def require_disjoint(groups: Sequence[Sequence[int]], classes: int) -> None:
    """Require that listed tasks have every class once.

    Raises:
        InputError: a class is in two tasks, in none, or is none of the dataset.
    """
    seen: dict[int, int] = {}
    for task, group in enumerate(groups):
        if not group:
            raise InputError(f"stream: task {task} has no classes — remove it, or give it some")
        for each in group:
            if not 0 <= each < classes:
                raise InputError(
                    f"stream: class {each} of task {task} is never announced by the dataset, whose"
                    f" classes are 0 to {classes - 1} — use one of them"
                )
            if each in seen:
                raise InputError(
                    f"stream: class {each} is in task {seen[each]} and in task {task} — keep it in"
                    " one of them"
                )
            seen[each] = task
    missing = sorted({*range(classes)} - seen.keys())
    if missing:
        raise InputError(f"stream: class {missing[0]} is in no task — add it to one")


def build_class_stream(labels: Indices, groups: Sequence[Sequence[int]]) -> TaskStream:
    """Return the stream in which each task has the samples of its classes.

    Args:
        labels: class of each training sample, [N].
        groups: classes of each task.

    Raises:
        InputError: a task has no samples.
    """
    tasks = tuple(np.flatnonzero(np.isin(labels, group)) for group in groups)
    for number, task in enumerate(tasks):
        if not len(task):
            raise InputError(
                f"stream: task {number} has no training samples: its classes"
                f" {', '.join(map(str, groups[number]))} have none — merge it with another task"
            )
    return TaskStream(tasks, tuple(tuple(group) for group in groups))


def build_domain_stream(labels: Indices, tasks: int, seed: int) -> TaskStream:
    """Return the stream in which each task has a part of the samples, of all classes.

    Raises:
        InputError: there are more tasks than samples.
    """
    if not 1 <= tasks <= len(labels):
        raise InputError(
            f"stream: {tasks} tasks of {len(labels)} samples — give from 1 to {len(labels)} tasks"
        )
    order = np.random.default_rng(seed).permutation(len(labels))
    classes = tuple(np.unique(labels).tolist())
    return TaskStream(
        tuple(np.sort(part) for part in np.array_split(order, tasks)), (classes,) * tasks
    )


def build_gradual_stream(labels: Indices, groups: Sequence[Sequence[int]], seed: int) -> TaskStream:
    """Return the stream in which classes come and go gradually.

    Each sample arrives around the time of its class's group. Tasks are equal parts of this order.
    """
    place = np.zeros(int(labels.max()) + 1)
    for number, group in enumerate(groups):
        place[[*group]] = number
    noise = np.random.default_rng(seed).normal(0.0, _DRIFT, len(labels))
    order = np.argsort(place[labels] + noise, kind="stable")
    tasks = np.array_split(order, len(groups))
    return TaskStream(tuple(tasks), tuple(tuple(group) for group in groups))
