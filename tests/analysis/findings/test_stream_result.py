"""Accuracies on the tasks of a stream, as they are reported."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from laggard.analysis.findings.stream_result import (
    build_stream_document,
    format_lost_buffers,
    format_stream,
    summarize_stream,
)
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import StreamTask
from laggard.core.span_schema import Phase


def task(last_step: int, *accuracies: float) -> StreamTask:
    return StreamTask(
        classes=(0,),
        last_step=last_step,
        initial_accuracy=0.1,
        steps=(4, 9, 14),
        accuracies=accuracies,
    )


def test_the_evaluation_at_or_after_the_end_of_a_task_counts() -> None:
    tasks = (task(4, 0.9, 0.5, 0.2), task(8, 0.0, 0.7, 0.6), task(14, 0.1, 0.0, 0.8))
    result = summarize_stream(tasks)
    assert result is not None
    assert result.matrix.tolist() == [[0.9, 0.0, 0.1], [0.5, 0.7, 0.0], [0.2, 0.6, 0.8]]
    document = build_stream_document(tasks)
    assert isinstance(document, dict)
    assert document["average_accuracy"] == pytest.approx(1.6 / 3)
    assert document["forgetting"] == pytest.approx((0.7 + 0.1) / 2)
    (sentence,) = format_stream(tasks)
    assert "53 % on average" in sentence
    assert "40.0 percentage points" in sentence


def test_tiers_with_models_of_their_own_are_told_apart() -> None:
    tiers = {"cloud": (0.9, 0.9, 0.9), "edge": (0.0, 0.5, 0.1)}
    one = task(14, 0.4, 0.8, 0.6).model_copy(update={"tiers": tiers})
    sentence = format_stream((one,))[-1]
    assert "90 % in cloud and 20 % in edge" in sentence
    assert "their mean one of 60 %" in sentence
    document = build_stream_document((one,))
    assert isinstance(document, dict)
    assert document["tiers"] == {"cloud": pytest.approx(0.9), "edge": pytest.approx(0.2)}


def test_a_stream_that_was_cut_off_has_no_measures() -> None:
    tasks = (task(4, 0.9, 0.5, 0.2), task(20, 0.0, 0.7, 0.6))
    result = summarize_stream(tasks)
    assert result is not None
    assert result.measures is None
    assert format_stream(tasks) == ("1 of the stream's 2 tasks ended.",)


def test_a_training_without_a_stream_says_nothing_of_tasks() -> None:
    assert summarize_stream(()) is None
    assert build_stream_document(()) is None
    assert format_stream(()) == ()


def test_a_worker_that_left_took_its_buffer_along(quickstart_run: RunData) -> None:
    record = quickstart_run.record
    assert record is not None
    steps, spans = quickstart_run.steps, quickstart_run.spans
    last = int(steps.step.max())
    tasks = (task(last // 4), task(last // 2), task(last))
    third = (steps.rank != 1) | (steps.step <= last // 3)
    left = dataclasses.replace(
        quickstart_run,
        stream_tasks=tasks,
        steps=steps.where(third),
        spans=spans.with_columns(
            **{**spans.to_dict(), "phase": np.full(len(spans), Phase.REHEARSE.code)}
        ),
        record=record.model_copy(update={"lost_ranks": (1, 2)}),
    )
    (sentence,) = format_lost_buffers(left)
    assert "(rank 1) left in task 2 of 3" in sentence
    assert format_lost_buffers(dataclasses.replace(left, spans=spans)) == ()
    assert format_lost_buffers(dataclasses.replace(left, record=record)) == ()
    assert format_lost_buffers(dataclasses.replace(left, stream_tasks=())) == ()
