"""The figure of a stream: drawn for few and many tasks, evaluated often or once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.figures.drawing import draw_figure
from laggard.analysis.report.figures.registry import select_figure_kinds
from laggard.analysis.report.figures.task_accuracy import FIGURE
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import StreamTask
from tests.analysis.report.test_figures import (
    WIDTHS,
    assert_all_is_inside,
    assert_labels_do_not_overlap,
    assert_text_is_legible,
)


def build_tasks(count: int, evaluations: int) -> tuple[StreamTask, ...]:
    """Tasks of ten steps, each of which is known from its own evaluation on."""
    steps = tuple(10 * (i + 1) - 1 for i in range(evaluations))
    return tuple(
        StreamTask(
            classes=tuple(range(6 * task, 6 * task + 6)),
            last_step=10 * task + 9,
            initial_accuracy=0.1,
            steps=steps,
            accuracies=tuple(0.9 if i == task else 0.2 * (i > task) for i in range(evaluations)),
        )
        for task in range(count)
    )


@pytest.mark.parametrize("width_in", WIDTHS)
@pytest.mark.parametrize(("count", "evaluations"), [(1, 1), (5, 5), (5, 3), (10, 10), (25, 25)])
def test_it_is_legible(
    count: int,
    evaluations: int,
    width_in: float,
    quickstart_run: RunData,
    quickstart_analysis: AnalysisResult,
) -> None:
    run = replace(quickstart_run, stream_tasks=build_tasks(count, evaluations))
    assert FIGURE in select_figure_kinds(run, quickstart_analysis)
    figure = draw_figure(FIGURE, run, quickstart_analysis, width_in)
    assert_all_is_inside(figure)
    assert_text_is_legible(figure)
    assert_labels_do_not_overlap(figure)
    *_, mean = figure.axes[0].get_lines()[: count + 1]
    begun = min(count, evaluations)
    assert mean.get_ydata()[-1] == pytest.approx(
        (0.9 * (count >= evaluations) + 0.2 * (begun - (count >= evaluations))) / begun
    )
    assert FIGURE.caption(run, quickstart_analysis).endswith(".")


def test_a_run_without_a_stream_has_no_such_figure(
    quickstart_run: RunData, quickstart_analysis: AnalysisResult
) -> None:
    assert FIGURE not in select_figure_kinds(quickstart_run, quickstart_analysis)
    nothing = replace(quickstart_run, stream_tasks=build_tasks(3, 0))
    assert FIGURE not in select_figure_kinds(nothing, quickstart_analysis)
