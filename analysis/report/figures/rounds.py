"""Rounds of a federated training over time: who was selected, and what became of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from matplotlib.collections import LineCollection

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.federated_result import (
    FederatedResult,
    find_federated_result,
    format_rounds,
)
from laggard.analysis.report.figures.figure_kind import FigureKind
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.canvas import is_narrow, new_figure, set_title
from laggard.analysis.report.style.labels import format_rank_labels
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import AnswerOutcome, FederatedTraining

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LABELS = 32
_MOST_LINES = 2000
"""Lines up to which each is drawn as a shape, which a reader can zoom into."""

_STYLES: tuple[tuple[AnswerOutcome, str, str, str], ...] = (
    ("accepted", "accepted", palette.COMPUTE.color, "solid"),
    ("unanswered", "not answered in time", "#E69F00", "dashed"),
    ("failed", "failed", "#CC3311", "dotted"),
)

Segment = tuple[tuple[float, float], tuple[float, float]]


def draw_rounds(run: RunData, _analysis: AnalysisResult, width_in: float) -> Figure:
    """Draw a line for each client of each round, from the round's begin to the answer.

    The clients are in the order of the usual time of their answers, the fastest first.

    Args:
        run: run of a federated training.
        _analysis: not used.
        width_in: width of the figure, in inches.

    Returns:
        The figure, drawn under the caller's style.
    """
    result, training = find_federated_result(run), run.federated
    assert result is not None
    assert training is not None
    order = sort_clients(result)
    shown = min(len(order), _MOST_LABELS)
    figure = new_figure(width_in, 1.6 + 0.19 * max(shown, 8))
    axes = figure.subplots()
    _plot_answers(axes, training, order)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xlim(0, max(training.rounds[-1].ended_s, 1e-9))
    if len(order) <= _MOST_LABELS:
        labels = format_rank_labels([result.clients[client].host for client in order])
        axes.set_yticks(range(len(order)), labels)
    else:
        axes.set_ylabel("clients, the fastest first")
    axes.set_xlabel("time in s")
    axes.grid(axis="x")
    set_title(axes, "Who took part in the rounds", width_in)
    figure.legend(loc="outside lower center", ncols=1 if is_narrow(width_in) else 3)
    return figure


def sort_clients(result: FederatedResult) -> Sequence[int]:
    """Return the clients, the fastest first; those without an accepted answer come last."""
    return sorted(
        range(len(result.clients)),
        key=lambda client: (
            result.clients[client].usual_s is None,
            result.clients[client].usual_s or 0.0,
        ),
    )


def _plot_answers(axes: Axes, training: FederatedTraining, order: Sequence[int]) -> None:
    row = {client: number for number, client in enumerate(order)}
    width = 5.0 if len(order) <= _MOST_LABELS else 5.0 * _MOST_LABELS / len(order)
    for outcome, label, color, dashes in _STYLES:
        segments = [*_list_segments(training, outcome, row)]
        if segments:
            lines = LineCollection(
                segments, colors=color, linewidths=max(width, 0.4), linestyles=dashes, label=label
            )
            lines.set_rasterized(len(segments) > _MOST_LINES)
            axes.add_collection(lines)


def _list_segments(
    training: FederatedTraining, outcome: AnswerOutcome, row: dict[int, int]
) -> Iterator[Segment]:
    begun_s = 0.0
    for each in training.rounds:
        for answer in each.answers:
            if answer.outcome == outcome:
                # An answer that took longer than its round was on its way when the round began.
                took_s = each.ended_s - begun_s if answer.took_s is None else answer.took_s
                y = float(row[answer.rank])
                yield (begun_s, y), (min(begun_s + took_s, each.ended_s), y)
        begun_s = each.ended_s


def has_rounds(run: RunData, _analysis: AnalysisResult) -> bool:
    """Return True if a run was a federated training with at least one round."""
    return find_federated_result(run) is not None


def write_rounds_caption(run: RunData, _analysis: AnalysisResult) -> str:
    """Describe who took part."""
    return format_rounds(find_federated_result(run))[0]


FIGURE = FigureKind(
    "rounds",
    "Who took part in the rounds",
    "Lines over time: one row per client, one line per round that selected it, from the beginning"
    " of the round to the client's answer.",
    draw_rounds,
    write_rounds_caption,
    has_rounds,
)
