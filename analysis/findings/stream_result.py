"""Result of a training on a stream: accuracies on its tasks, and what was forgotten of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.tables.load_run import RunData
from laggard.core.cost_model.arrays import FloatArray
from laggard.core.files.input_files import JsonDocument
from laggard.core.rules.incremental_learning import IncrementalMeasures, measure_incremental
from laggard.core.run_schema import StreamTask
from laggard.core.span_schema import Phase
from laggard.core.text.text_format import format_list, format_percent


@dataclass(frozen=True)
class StreamResult:
    """Accuracies of a training on the tasks of its stream.

    Attributes:
        matrix: accuracy on each task after each task that has ended, [E, T].
        measures: measures of all tasks; None if not all have ended.
        tiers: mean accuracy of each tier's own model, over all tasks and evaluations; empty if
            the tiers had no models of their own in any evaluation.
        mean_accuracy: the same of the model of all.
    """

    matrix: FloatArray
    measures: IncrementalMeasures | None
    tiers: Mapping[str, float]
    mean_accuracy: float


def summarize_stream(tasks: Sequence[StreamTask]) -> StreamResult | None:
    """Return the accuracies after each task; None without a stream.

    The accuracies after a task are those of the first evaluation in or after its last step.
    """
    if not tasks:
        return None
    rows = []
    for task in tasks:
        at = int(np.searchsorted(task.steps, task.last_step))
        if at == len(task.steps):
            break
        rows.append([each.accuracies[at] for each in tasks])
    matrix = np.array(rows, dtype=np.float64).reshape(len(rows), len(tasks))
    initial = np.array([each.initial_accuracy for each in tasks])
    is_complete = len(rows) == len(tasks)
    tiers = {tier: _mean(each.tiers[tier] for each in tasks) for tier in tasks[0].tiers}
    return StreamResult(
        matrix,
        measure_incremental(matrix, initial) if is_complete else None,
        tiers,
        _mean(each.accuracies for each in tasks),
    )


def _mean(accuracies: Iterable[Sequence[float]]) -> float:
    """Return the mean over tasks and evaluations; NaN without evaluations."""
    values = np.array([*accuracies], dtype=np.float64)
    return float(values.mean()) if values.size else math.nan


def format_lost_buffers(run: RunData) -> tuple[str, ...]:
    """Return a sentence about each worker that left with its buffer before the stream ended."""
    tasks, steps = run.stream_tasks, run.steps
    if not tasks or run.record is None or not (run.spans.phase == Phase.REHEARSE.code).any():
        return ()
    gone = {*run.record.lost_ranks, *(each.rank for each in run.record.churn)}
    ends, last = [task.last_step for task in tasks], int(steps.step.max(initial=-1))
    sentences = []
    for rank in sorted(gone):
        step = int(steps.step[steps.rank == rank].max(initial=-1))
        # Who came back has the last step, and its buffer.
        if step < last:
            task = int(np.searchsorted(ends, step)) + 1
            sentences.append(
                f"{run.hosts[rank].host} (rank {rank}) left in task {task} of {len(tasks)}; the old"
                " samples in its buffer were lost with it."
            )
    return tuple(sentences)


def build_stream_document(tasks: Sequence[StreamTask]) -> JsonDocument:
    """Return the accuracies and measures for programs; None without a stream."""
    result = summarize_stream(tasks)
    if result is None:
        return None
    measures = result.measures
    return {
        "tasks": len(tasks),
        "matrix": [[float(each) for each in row] for row in result.matrix],
        "average_accuracy": None if measures is None else measures.accuracy,
        "forgetting": None if measures is None else measures.forgetting,
        "backward_transfer": None if measures is None else measures.backward_transfer,
        "forward_transfer": None if measures is None else measures.forward_transfer,
        "tiers": {**result.tiers},
    }


def format_stream(tasks: Sequence[StreamTask]) -> tuple[str, ...]:
    """Return sentences about what the training learnt and forgot; nothing without a stream."""
    result = summarize_stream(tasks)
    if result is None:
        return ()
    return (_format_measures(result, len(tasks)), *_format_tiers(result))


def _format_measures(result: StreamResult, tasks: int) -> str:
    measures = result.measures
    if measures is None:
        return f"{len(result.matrix)} of the stream's {tasks} tasks ended."
    if tasks == 1:
        return f"After the stream's only task, accuracy was {format_percent(measures.accuracy)}."
    return (
        f"After the stream's {tasks} tasks, accuracy was {format_percent(measures.accuracy)} on"
        f" average over them, and {100 * measures.forgetting:.1f} percentage points of the best"
        " accuracy on earlier tasks were forgotten."
    )


def _format_tiers(result: StreamResult) -> tuple[str, ...]:
    if not result.tiers:
        return ()
    own = format_list(
        [f"{format_percent(accuracy)} in {tier}" for tier, accuracy in result.tiers.items()]
    )
    mean = format_percent(result.mean_accuracy)
    return (
        (
            "On average over all evaluations and tasks, the tiers' own models had an accuracy of"
            f" {own}, and their mean one of {mean}."
        ),
    )
